"""Checks and escapes of keys and fields, so that they are read from a tar as they were written."""

import re
from functools import lru_cache
from typing import Final

from lightning_shards.errors import SampleError
from lightning_shards.shards.tar.walk import MAX_NAME_BYTES, RESERVED_SUFFIXES, split_name

MAX_KEY_BYTES: Final = MAX_NAME_BYTES // 2
MAX_FIELD_BYTES: Final = 255

_RESERVED_FIELDS = RESERVED_SUFFIXES | {"__bad__"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NO_PARTS = frozenset({"", ".", ".."})
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED = re.compile(r"[\x00-\x1f\x7f%\\]|[\udc80-\udcff]")
_META_FOLDER = re.compile(r"__[^/]*__(/|$)")


def escape_key(text: str) -> str:
    """A valid key for any name, from which `urllib.parse.unquote` gives the name back.

    Dots after the last slash, percent signs, backslashes, control characters and bytes that are
    not UTF-8 become %XX; slashes stay.

    >>> escape_key("class.0/img.v2")
    'class.0/img%2Ev2'
    """
    folder, slash, name = text.rpartition("/")
    escaped = _ESCAPED.sub(_percent, folder + slash) + _ESCAPED.sub(_percent, name).replace(
        ".", "%2E"
    )
    return "%5F" + escaped[1:] if _META_FOLDER.match(escaped) else escaped


def is_hidden(name: str) -> bool:
    """Whether a file is hidden, as those that macOS adds to tars; it belongs to no sample here.

    By webdataset's rule `train/._0001.jpg` would be the field `_0001.jpg` of a sample `train/`.
    """
    return name.startswith(".", name.rfind("/") + 1)


def check_key(key: str) -> None:
    """Refuse a key that readers would change, or that would lead out of a folder.

    Raises:
        SampleError: The message has the reason and the remedy.
    """
    fault = _fault_of(key)
    if fault:
        raise SampleError(
            f"{key!r} cannot be a key: {fault}; keys are like class/0001, and "
            "lightning_shards.dataprep.writing.keys.escape_key makes one of any name"
        )


@lru_cache(maxsize=1024)
def check_field(field: str) -> None:
    """Refuse a field that readers would not find as the suffix of a member.

    Raises:
        SampleError: The message has the reason and the remedy.
    """
    is_sound = (
        split_name(f"0.{field}") == ("0", field)
        and field not in _RESERVED_FIELDS
        and field.isprintable()
        and 0 < len(field.encode("utf-8")) <= MAX_FIELD_BYTES
    )
    if not is_sound:
        raise SampleError(
            f"{field!r} cannot be a field: fields are suffixes in lower case without slashes, like "
            "jpg or seg.png; rename it"
        )


def check_new_field(field: str) -> None:
    """Refuse what `check_field` does, and a first dot, which readers would take for a part of it.

    Members that exist may have two dots before their suffix, as `a..cls` has.

    Raises:
        SampleError: The message has the reason and the remedy.
    """
    if field.startswith("."):
        raise SampleError(
            f"{field!r} cannot be a field: it begins with a dot, and the dot between key and field "
            f"is written anyway; write {field.lstrip('.') or 'jpg'!r}"
        )
    check_field(field)


def _fault_of(key: str) -> str:
    """The reason why this is not a valid key; empty if it is."""
    parts = key.removeprefix("./").split("/")  # `tar c .` writes ./0001.jpg
    faults = {
        "it is not UTF-8": bool(_SURROGATE.search(key)),
        "it is empty or absolute, or has a part that is empty, '.' or '..'": not (
            _NO_PARTS.isdisjoint(parts)
        ),
        "it has a control character": bool(_CONTROL.search(key)),
        f"it has more than {MAX_KEY_BYTES} bytes": (
            len(key.encode("utf-8", "replace")) > MAX_KEY_BYTES
        ),
        "it has a dot after the last slash, where the suffix begins": "." in parts[-1],
        "what is in a folder __x__ is in no sample": bool(_META_FOLDER.match(key)),
    }
    return next((fault for fault, is_met in faults.items() if is_met), "")


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]) & 0xFF:02X}"  # a surrogate's lower byte is the byte it stands for
