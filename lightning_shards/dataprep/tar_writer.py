"""The writer of tar shards, and the names that keys and fields may have in them.

Equal samples give equal bytes, and files appear whole or not at all. Headers are plain USTAR
without times, owners or other traces of the machine; a PAX header precedes a member only if its
name or size needs one. Every name is checked: `walk.split_name` must give the key and the field
from which it was made.
"""

import hashlib
import io
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from lightning_shards.errors import SampleError
from lightning_shards.samples.decoders import Decoding, decoding_of
from lightning_shards.shards.files import make_folder, new_file
from lightning_shards.shards.tar.walk import (
    BLOCK,
    MAX_NAME_BYTES,
    RESERVED_SUFFIXES,
    split_name,
    up_to_block,
)

Fields = Sequence[tuple[str, bytes]]
"""The members of a sample: field (the suffix of the member's name) and contents, in file order."""

MAX_KEY_BYTES: Final = MAX_NAME_BYTES // 2

_RESERVED_FIELDS = RESERVED_SUFFIXES | {"__bad__"}
_NOT_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_ESCAPED = re.compile(  # the last three: parts `.`, `..`, and what is empty
    r"[\x00-\x1f\x7f%\\\ud800-\udfff]|(?<![^/])\.{1,2}(?=/)|(?<![^/])/|/\Z"
)
_META_FOLDER = re.compile(r"__[^/]*__(/|$)")

_RECORD = 20 * BLOCK  # archives are padded with zeros to whole records, as by tar and tarfile
_MAX_NAME = 100
_MAX_SIZE = 8**11 - 1
_PLAIN = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)  # the header of an empty file without a name
_SIZE, _CHECKSUM = slice(124, 136), slice(148, 156)
_PLAIN_SUM = sum(_PLAIN) - sum(_PLAIN[_SIZE]) - sum(_PLAIN[_CHECKSUM]) + sum(b" " * 8)


def escape_key(text: str) -> str:
    """A valid key for any name, from which `urllib.parse.unquote` gives the name back.

    Dots after the last slash, percent signs, backslashes, control characters and bytes that are
    not UTF-8 become %XX, and so do the dots of parts `.` and `..` and the slashes of empty parts.
    Other slashes stay.

    >>> escape_key("class.0/img.v2"), escape_key("../a//b")
    ('class.0/img%2Ev2', '%2E%2E/a/%2Fb')
    """
    folder, slash, name = _ESCAPED.sub(_percent, text).rpartition("/")
    escaped = folder + slash + name.replace(".", "%2E")
    return "%5F" + escaped[1:] if _META_FOLDER.match(escaped) else escaped


def key_of_path(path: str) -> str:
    """The escaped path of a file without its suffix; `/` and `..` at its beginning are left out.

    >>> key_of_path("../images/./1.jpg")
    'images/1'
    """
    stem = os.path.splitext(os.path.normpath(path))[0]  # noqa: PTH122 - strings here
    return escape_key(re.sub(r"^(/|\.\.(/|$))+", "", stem))


def check_sample(key: str, fields: Sequence[str]) -> None:
    """Refuse a sample that readers would not read back as this key and these fields.

    Raises:
        SampleError: The message has the rule and the remedy.
    """
    _check_key(key)
    if not fields:
        raise SampleError(f"sample {key!r} has no field; a sample needs one at least")
    for number, field in enumerate(fields):
        if field in fields[:number]:
            raise SampleError(f"sample {key!r} has two members for the field {field!r}; rename one")
        is_taken = field in _RESERVED_FIELDS or field.startswith(".") or not field.isprintable()
        # the second as of `__a` and `label__`, whose member would be in no sample
        if is_taken or not field or split_name(f"{key}.{field}") != (key, field):
            raise SampleError(
                f"{field!r} cannot be a field of sample {key!r}: fields are suffixes in lower case "
                "without slashes and without the dot that follows the key, like jpg or seg.png, "
                "and give no name like __x__; rename it"
            )


def _check_key(key: str) -> None:
    """Refuse a key that readers would change, or that would lead out of a folder."""
    parts = key.removeprefix("./").split("/")  # `tar c .` writes ./0001.jpg
    is_sound = (
        0 < len(key.encode("utf-8", "replace")) <= MAX_KEY_BYTES
        and {"", ".", ".."}.isdisjoint(parts)
        and "." not in parts[-1]
        and not _NOT_TEXT.search(key)
        and not _META_FOLDER.match(key)
    )
    if not is_sound:
        raise SampleError(
            f"{key!r} cannot be a key: keys are like class/0001, UTF-8 of at most {MAX_KEY_BYTES} "
            "bytes, without control characters, parts that are empty, '.' or '..', a first folder "
            "like __x__, or a dot after the last slash, where the suffix begins; "
            "lightning_shards.dataprep.tar_writer.escape_key makes a key of any name"
        )


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """One shard that was written.

    Attributes:
        name: File name.
        samples: Number of samples.
        size_bytes: Size of the file.
        md5: MD5 of the file, as in the wids JSON; it protects against accidents only.
        fields: How many samples have each field, by name in order.
    """

    name: str
    samples: int
    size_bytes: int
    md5: str
    fields: dict[str, int]


class TarWriter:
    """Writes samples to one open tar file, which the caller closes.

    Attributes:
        samples: Samples written so far.
        position: Bytes written so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.md5(usedforsecurity=False)
        self._fields: Counter[str] = Counter()
        self.samples = 0
        self.position = 0

    def write(self, key: str, fields: Fields) -> None:
        """Add one sample, which `check_sample` has let pass."""
        for name, data in fields:
            self._put(member_header(f"{key}.{name}", len(data)))
            self._put(data)
            self._put(bytes(-len(data) % BLOCK))
        self.samples += 1
        self._fields.update(name for name, _ in fields)

    def finish(self, name: str) -> WrittenShard:
        """Write the end marker, and return the shard under this name."""
        end = 2 * BLOCK
        self._put(bytes(end + -(self.position + end) % _RECORD))
        fields = dict(sorted(self._fields.items()))
        return WrittenShard(name, self.samples, self.position, self._digest.hexdigest(), fields)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.position += len(data)


def write_shard(path: Path, samples: Iterable[tuple[str, Fields]]) -> WrittenShard:
    """Write keys and fields to a tar that appears whole or not at all.

    Raises:
        SampleError: A sample could not be read back as it is.
        FileAccessError: The file cannot be written; no part of it is left.
    """
    make_folder(path.parent)
    with new_file(path) as file:
        writer = TarWriter(file)
        for key, fields in samples:
            check_sample(key, [name for name, _ in fields])
            writer.write(key, fields)
        return writer.finish(path.name)


def is_image(suffix: str) -> bool:
    """Whether members of a suffix are decoded as images."""
    return decoding_of(suffix) == Decoding("rgb")


def tar_size(size: int) -> int:
    """Bytes that a member of this size takes in a tar, without an extended header."""
    return BLOCK + up_to_block(size)


def as_bytes(value: object, key: str, field: str) -> bytes:
    """The bytes that are stored for a user's value of a member.

    Bytes and texts are stored as they are. Other values are encoded by the suffix, so that its
    default decoder gives them back: arrays, numbers and lists of them in `npy`; dicts, lists and
    numbers in `json`; whole numbers in `cls`; numbers in `txt`.

    Raises:
        SampleError: The suffix does not take such a value.
    """
    if isinstance(value, bytes):
        return value
    decoding = decoding_of(field)
    try:
        return value.encode() if isinstance(value, str) else _ENCODERS[decoding](value)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        problem = "" if isinstance(error, KeyError) else f" ({error})"
        raise SampleError(
            f"sample {key!r}: {field!r} cannot be made of {type(value).__name__}{problem}; give "
            "bytes or text, an array or list of numbers for 'npy', a dict, list or number for "
            "'json', a whole number for 'cls', or a number for 'txt'"
        ) from error


def _npy_bytes(value: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(value), allow_pickle=False)
    return file.getvalue()


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=lambda array: array.tolist()).encode()


def _number_bytes(value: object) -> bytes:
    if not isinstance(value, Real):
        raise TypeError("it is no number")
    return str(value).encode()


_ENCODERS: dict[Decoding | None, Callable[[Any], bytes]] = {
    Decoding("npy"): _npy_bytes,
    Decoding("json"): _json_bytes,
    Decoding("int"): lambda value: b"%d" % index(value),
    Decoding("text"): _number_bytes,
}
"""What encodes values that are no bytes and no text, by the decoding of their suffix."""


def member_header(name: str, size: int) -> bytes:
    """The header block or blocks that precede the data of a member.

    `tarfile` gives the same bytes for a plain name, in ten times as long.
    """
    encoded = name.encode()
    if len(encoded) <= _MAX_NAME and size <= _MAX_SIZE and name.isascii():
        digits = b"%011o\0" % size
        checksum = b"%06o\0 " % (_PLAIN_SUM + sum(encoded) + sum(digits))
        named = encoded.ljust(_MAX_NAME, b"\0") + _PLAIN[_MAX_NAME : _SIZE.start] + digits
        between = _PLAIN[_SIZE.stop : _CHECKSUM.start]
        return named + between + checksum + _PLAIN[_CHECKSUM.stop :]
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.PAX_FORMAT)


def _percent(match: re.Match[str]) -> str:
    is_byte = "\udc80" <= match[0] <= "\udcff"  # of a file name that is not UTF-8
    data = match[0].encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"%{byte:02X}" for byte in data)
