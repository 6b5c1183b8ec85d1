"""Checks and escapes of keys and fields, so that they are read from a tar as they were written."""

import os
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
_ESCAPED = re.compile(r"[\x00-\x1f\x7f%\\]|[\ud800-\udfff]")
_NO_PART = re.compile(r"(?<![^/])\.{1,2}(?=/)|(?<![^/])/|/\Z")  # `.`, `..`, and what is empty
_META_FOLDER = re.compile(r"__[^/]*__(/|$)")


def escape_key(text: str) -> str:
    """A valid key for any name, from which `urllib.parse.unquote` gives the name back.

    Dots after the last slash, percent signs, backslashes, control characters and bytes that are
    not UTF-8 become %XX, and so do the dots of parts `.` and `..` and the slashes of empty parts.
    Other slashes stay.

    >>> escape_key("class.0/img.v2"), escape_key("../a//b")
    ('class.0/img%2Ev2', '%2E%2E/a/%2Fb')
    """
    sound = _NO_PART.sub(_percent, _ESCAPED.sub(_percent, text))
    folder, slash, name = sound.rpartition("/")
    escaped = folder + slash + name.replace(".", "%2E")
    return "%5F" + escaped[1:] if _META_FOLDER.match(escaped) else escaped


def key_of_path(path: str) -> str:
    """The escaped path of a file without its suffix; `/` and `..` at its beginning are left out.

    >>> key_of_path("../images/./1.jpg")
    'images/1'
    """
    parts = os.path.splitext(os.path.normpath(path))[0].split("/")  # noqa: PTH122 - strings here
    while parts and parts[0] in ("", ".."):
        del parts[0]
    return escape_key("/".join(parts))


def prefixed_key(prefix: str, key: str) -> str:
    """A key with a name of any kind before it, as if it were in a folder of that name.

    Raises:
        SampleError: It is too long.
    """
    prefixed = f"{escape_key(prefix)}/{key.removeprefix('./')}"
    check_key(prefixed)
    return prefixed


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
    fault, remedy = _fault_of(key)
    if fault:
        raise SampleError(f"{key!r} cannot be a key: {fault}; keys are like class/0001: {remedy}")


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


def check_member_name(key: str, field: str) -> None:
    """Refuse a key and a field that are sound each by itself, and together a name of no sample.

    So are `__a` and `label__`: readers pass over names like `__a.label__`.

    Raises:
        SampleError: The message has the reason and the remedy.
    """
    name = f"{key}.{field}"
    if split_name(name) != (key, field):
        raise SampleError(
            f"sample {key!r} cannot have the field {field!r}: a member {name!r} is in no sample; "
            "rename the field, or put the key into a folder, as in a/0001"
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


_ESCAPE = "lightning_shards.dataprep.writing.keys.escape_key makes one of any name"


def _fault_of(key: str) -> tuple[str, str]:
    """The reason why this is not a valid key, and the remedy; empty if it is."""
    if not key:
        return "it is empty", "give the sample a name"
    if len(key.encode("utf-8", "replace")) > MAX_KEY_BYTES:
        return f"it has more than {MAX_KEY_BYTES} bytes", "shorten it"
    parts = key.removeprefix("./").split("/")  # `tar c .` writes ./0001.jpg
    faults = {
        "it is not UTF-8": bool(_SURROGATE.search(key)),
        "it is absolute, or has a part that is empty, '.' or '..'": not (
            _NO_PARTS.isdisjoint(parts)
        ),
        "it has a control character": bool(_CONTROL.search(key)),
        "it has a dot after the last slash, where the suffix begins": "." in parts[-1],
        "what is in a folder __x__ is in no sample": bool(_META_FOLDER.match(key)),
    }
    return next((fault for fault, is_met in faults.items() if is_met), ""), _ESCAPE


def _percent(match: re.Match[str]) -> str:
    is_byte = "\udc80" <= match[0] <= "\udcff"  # of a file name that is not UTF-8
    data = match[0].encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"%{byte:02X}" for byte in data)
