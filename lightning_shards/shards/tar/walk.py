"""The walk over the headers of a tar shard, which finds its members and groups them into samples.

Python's `tarfile` takes a damaged header for the end of the archive, and webdataset then loses the
rest of the shard without a word. Here every header's checksum is verified, every size is compared
with the file, and an archive without its end marker is an error. Members are grouped into samples
as webdataset does it, so that a count is the number of samples that a stream will yield.

Of long names extended headers have no checksum, so the header that follows is compared.
That header has a checksum, and writers repeat the name in it as far as it fits. The forms differ:

| writer | name field of the header that follows |
|---|---|
| GNU tar, busybox, tarfile (GNU), Go (GNU), commons-compress | the first 100 bytes, or 99 |
| tarfile (PAX) | the first 100 letters, `?` for each that is not ASCII |
| Go (PAX) | the first 100 ASCII letters, the others left out |
| tar-rs | the first 100 bytes, without `./` and double slashes |
| bsdtar (PAX) | the first folders, and the beginning of the last part, with the prefix field |
| tar-stream | `PaxHeader` |

A name that fits none of these forms is damaged if the field was clearly cut from it: the field is
full, or it differs from one of the forms in a single bit.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Final, NamedTuple, Protocol, TypeVar
from zlib import adler32

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.urls import redact

BLOCK: Final = 512

_Size = TypeVar("_Size", int, NDArray[np.int64])


def up_to_block(size: _Size) -> _Size:
    """The bytes of the blocks that this many bytes fill, or begin to fill.

    >>> up_to_block(0), up_to_block(1), up_to_block(512), up_to_block(513)
    (0, 512, 512, 1024)
    """
    return size + -size % BLOCK


_KINDS: Final = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),  # a block, or the end of an empty file
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstandard": re.compile(rb"\x28\xb5\x2f\xfd"),
}
"""The beginnings of compressed files; that of a tar is a name, which may begin like any of these,
but then its header has a right checksum."""

_FULL: Final = 97
"""A field of this many bytes was cut: writers leave space for an end, or end before a letter."""

_ANY: Final = -1
"""Stands for a letter that is not ASCII, which a writer may replace by any other."""

_ASCII: Final = 128


def contradicts(name: bytes, repeated: bytes) -> bool:
    """Whether the two names of a member contradict each other, so that the long one is damaged.

    Args:
        name: The name in the extended header.
        repeated: The name in the header that follows, with its prefix.
    """
    if not repeated or name.startswith(repeated):
        return False
    if len(name) < _FULL and name.isascii():
        return False  # no writer puts such a name into an extended header
    forms = [name, _without_empty_parts(name), name.decode("ascii", "ignore").encode()]
    if any(form.startswith(repeated) for form in forms) or _is_shortened(name, repeated):
        return False
    text = name.decode("utf-8", "surrogateescape")
    letters = [_byte_of(letter) for letter in text]
    if _differences(letters, repeated) == []:
        return False
    is_foreign = not text.isascii() and text.isprintable()  # writers spell such names differently
    is_cut = len(repeated) >= _FULL and not is_foreign
    return is_cut or any(_is_one_bit(_differences(form, repeated)) for form in (*forms, letters))


def gnu_name(body: bytes, block: int) -> bytes:
    """The name in the data of a GNU long name; empty if a block of so many bytes was lost from it.

    A zero ends the name. Where it ends with a block, more zeros than one stand for another block.
    """
    name = body.rstrip(b"\0")
    is_cut = len(name) % block == 0 and len(name) + 1 < len(body)
    return b"" if is_cut else name


def _without_empty_parts(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def _is_shortened(name: bytes, repeated: bytes) -> bool:
    """Whether `repeated` is some folders of the name and the beginning of its last part."""
    pairs = zip(name, repeated, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    head = name.rfind(b"/", 0, common) + 1
    last = name[name.rfind(b"/") + 1 :]
    return head < len(repeated) and last.startswith(repeated[head:])


def _byte_of(letter: str) -> int:
    if letter.isascii():
        return ord(letter)
    return ord(letter) - 0xDC00 if "\udc80" <= letter <= "\udcff" else _ANY


def _differences(form: Sequence[int], repeated: bytes) -> list[tuple[int, int]] | None:
    """The pairs of bytes that differ; None if this form is not cut to that length."""
    if len(repeated) != len(form) and not _FULL <= len(repeated) <= len(form):
        return None
    return [
        (right, byte)
        for right, byte in zip(form, repeated, strict=False)
        if right not in (byte, _ANY) and not (right >= _ASCII and byte in b"?_")
    ]


def _is_one_bit(differences: list[tuple[int, int]] | None) -> bool:
    if differences is None or len(differences) != 1:
        return False
    right, byte = differences[0]
    return (right ^ byte).bit_count() == 1


MAX_CHAINED: Final = 4  # extended headers in a row; writers need two
MAX_EXTENDED_BYTES: Final = 1 << 20
MAX_NAME_BYTES: Final = 4096

_ZERO_BLOCK = bytes(BLOCK)
_POSIX: Final = b"ustar\0"
_FLAG = 156
_REGULAR = frozenset(b"0\x007")
_WITHOUT_DATA = frozenset(b"123456")  # links, devices, folders, fifos: their size is not used
_EXTENDED = frozenset(b"xXgLK")  # X: Solaris' x
_FOLDER, _SPARSE, _GLOBAL, _LONG_NAME, _LONG_LINK, _NEWLINE = b"5SgLK\n"
_BASE_256 = 0x80
_MAX_DIGITS = 20
_NO_SUM = -(1 << 20)  # no block has such a sum, signed or not
_PAX_RECORD = re.compile(rb"(\d{1,8}) ([^=\n]+)=")
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META_NAME = re.compile(r"__[^/]*__($|/)")
RESERVED_SUFFIXES: Final = frozenset(
    {"__key__", "__url__", "__local_path__", "__id__"}
    | {"__weight__", "__component__", "__substitute__"}
)
"""Names that webdataset and this package add to a sample or a batch: no member may have them."""

_TAIL_CHUNK = 1 << 20
_FETCH_AGAIN: Final = "fetch or write this shard again"


class Buffer(Protocol):
    """The whole tar: its bytes, or an object that reads them on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


class Member(NamedTuple):
    """One regular file in the tar.

    Attributes:
        name: Full name; bytes that are not UTF-8 are kept as surrogates.
        offset: Where its data begins, in bytes from the start of the tar.
        size: bytes of data.
    """

    name: str
    offset: int
    size: int


class OtherEntry(NamedTuple):
    """What is in the tar and is no regular file.

    Attributes:
        name: Its name, which is not checked.
        is_folder: Whether it is a folder.
        stop: Offset behind its data.
    """

    name: str
    is_folder: bool
    stop: int


def walk_members(
    data: Buffer, url: str, start: int = 0, others: list[OtherEntry] | None = None
) -> Iterator[Member]:
    """The regular files of the tar in file order; `url` only serves the messages.

    `start` is the offset of a header that does not follow an extended one. What is no regular file
    is added to `others`.

    ustar, GNU long names, PAX headers and base-256 sizes are understood. Folders, links, devices
    and unknown types are passed over, as `tarfile` does; sparse files are refused.

    Raises:
        DamagedShardError: The bytes are not one whole tar archive.
    """
    position, chained = start, 0
    overrides: dict[bytes, bytes] = {}
    try:
        while (header := _header_at(data, position)) is not None:
            flag = _type_flag(header)
            offset = position + BLOCK
            size = _data_size(header, flag, overrides, len(data) - offset)
            if flag in _EXTENDED:
                chained += 1
                overrides = _extend(overrides, flag, data[offset : offset + size], chained)
            else:
                if flag in _REGULAR:
                    yield Member(_member_name(header, overrides), offset, size)
                elif others is not None:
                    others.append(_other(header, overrides, flag, offset + size))
                if chained:
                    chained, overrides = 0, {}
            position = offset + up_to_block(size)
        _check_end(data, position, chained)
    except _HeaderDamage as damage:
        raise damaged(str(damage), url, position, damage.remedy) from None


def split_name(name: str) -> tuple[str, str] | None:
    """Key and lower-case suffix of a member by webdataset's rule, or None if it is in no sample.

    The name is split at the first dot after the last slash. Names without a dot belong to no
    sample, and neither do names like `__x__` or files in a folder named like `__x__`.

    >>> split_name("train/0001.seg.PNG")
    ('train/0001', 'seg.png')
    """
    if name.startswith("__") and (
        _META_NAME.match(name) or ("/" not in name and name.endswith("__"))
    ):
        return None
    match = _NAME.match(name)
    return (match[1], match[2].lower()) if match else None


def group_members(members: Iterable[Member], url: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """The samples: key and members by suffix, for each run of adjacent members with one key.

    As in webdataset, members that are in no sample do not end a run, a key that comes again later
    is another sample, and a sample with a non-empty member `KEY.__bad__` is left out.

    Raises:
        DamagedShardError: A sample has two members with one suffix, or one that is reserved.
    """
    key: str | None = None
    fields: dict[str, Member] = {}
    for member in members:
        parts = split_name(member.name)
        if parts is None:
            continue
        if parts[0] != key:
            if key is not None and not is_left_out(fields):
                yield key, fields
            key, fields = parts[0], {}
        suffix = parts[1]
        if suffix in fields or suffix in RESERVED_SUFFIXES:
            raise _duplicate(fields.get(suffix), member, suffix, url)
        fields[suffix] = member
    if key is not None and not is_left_out(fields):
        yield key, fields


def is_left_out(fields: Mapping[str, Member]) -> bool:
    """Whether webdataset leaves the sample out: it has a `__bad__` marker that is not empty."""
    marker = fields.get("__bad__")
    return marker is not None and marker.size > 0


def damaged(what: str, url: str, position: int, remedy: str = _FETCH_AGAIN) -> DamagedShardError:
    """The error for a damaged shard, whose remedy is mostly to fetch the file again."""
    return DamagedShardError(f"{redact(url)} {what}, at byte {position}; {remedy}")


class _HeaderDamage(Exception):  # noqa: N818 - a signal within this module, never seen outside
    """The fault of the tar at the header that is being read."""

    remedy = _FETCH_AGAIN


class _Compressed(_HeaderDamage):
    """The file is a compressed one."""

    remedy = "unpack it (gunzip, bunzip2, unxz or zstd -d), which gives the plain tar"


def _duplicate(first: Member | None, second: Member, suffix: str, url: str) -> DamagedShardError:
    """The error for two members with the same suffix in one sample."""
    if first is None:
        return damaged(f"has a member {second.name!r}: {suffix} is reserved", url, second.offset)
    return damaged(
        f"has two members for the suffix {suffix!r} of one sample, {first.name!r} and "
        f"{second.name!r}",
        url,
        second.offset,
    )


def _header_at(data: Buffer, position: int) -> bytes | None:
    """The header block, with its checksum verified; None at the end marker, a block of zeros."""
    header = data[position : position + BLOCK]
    if header == _ZERO_BLOCK:
        return None
    if len(header) < BLOCK:
        _refuse_compressed(header, position)
        raise _HeaderDamage(
            "is cut short: it ends without the end marker of a tar archive" if data else "is empty"
        )
    # Adler-32 begins with 1 and adds up bytes modulo 65521, which half a block cannot reach. The
    # sum is therefore exact, in a twentieth of the time of sum().
    total = (adler32(header[:256]) & 0xFFFF) + (adler32(header[256:]) & 0xFFFF) - 2
    if total != _expected_sum(header[148:156]) and not _has_signed_sum(header, total):
        _refuse_compressed(header, position)
        raise _HeaderDamage("has a damaged header: its checksum does not match")
    return header


@lru_cache(maxsize=4096)
def _expected_sum(field: bytes) -> int:
    """The sum that this checksum field stands for, or a number that is no sum."""
    try:
        return _number(field) - 256 + sum(field)
    except _HeaderDamage:
        return _NO_SUM


def _has_signed_sum(header: bytes, total: int) -> bool:
    """Whether the checksum is the sum of signed bytes, as some old tars wrote it."""
    rest = header[:148] + header[156:]
    num_negative = sum(byte >> 7 for byte in rest)
    return total - 256 * num_negative == _expected_sum(header[148:156])


def _refuse_compressed(header: bytes, position: int) -> None:
    for kind, magic in _KINDS.items():
        if not position and magic.match(header):
            raise _Compressed(f"is compressed ({kind}), and shards are plain tars")


def _number(field: bytes) -> int:
    """A number in octal digits, or in base 256 after the byte 0x80; never negative."""
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise _HeaderDamage(f"has a damaged header: {field!r} is no number")
    return int(digits or b"0", 8)


def _type_flag(header: bytes) -> int:
    """The type of the member; folders in the style from before POSIX are recognised, too."""
    flag = header[_FLAG]
    return _FOLDER if not flag and header[:100].rstrip(b"\0").endswith(b"/") else flag


def _data_size(header: bytes, flag: int, overrides: dict[bytes, bytes], available: int) -> int:
    """The size of the data that follows the header, which must lie within the file."""
    if flag in _WITHOUT_DATA:
        return 0
    if flag == _SPARSE:
        raise _HeaderDamage("has a sparse member: write the shard without sparse files")
    if b"size" in overrides and flag not in _EXTENDED:
        size = int(overrides[b"size"])
    else:
        size = _number(header[124:136])
    if flag in _EXTENDED and size > MAX_EXTENDED_BYTES:
        raise _HeaderDamage(
            f"has an extended header of {size} bytes, more than {MAX_EXTENDED_BYTES}"
        )
    if size > available:
        raise _HeaderDamage(f"is cut short or damaged: {size} bytes should follow, {available} do")
    return size


def _member_name(header: bytes, overrides: dict[bytes, bytes]) -> str:
    """The name, from an extended header if there is one."""
    long_name = overrides.get(b"path")
    name = header[:100].partition(b"\0")[0]
    # GNU tar has times where others have the prefix; without a long name it is read as by tarfile.
    if header[345] and (long_name is None or header[257:263] == _POSIX):
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    if long_name is None:
        return name.decode("utf-8", "surrogateescape")
    if len(long_name) > MAX_NAME_BYTES:
        raise _HeaderDamage(f"has a name of {len(long_name)} bytes, more than {MAX_NAME_BYTES}")
    if contradicts(long_name, name):
        raise _HeaderDamage(
            f"has a damaged name: its extended header says {_shown(long_name)}, the header of the "
            f"member {_shown(name)}"
        )
    return long_name.decode("utf-8", "surrogateescape")


def _other(header: bytes, overrides: dict[bytes, bytes], flag: int, stop: int) -> OtherEntry:
    long_name = overrides.get(b"path")
    parts = [header[345:500], header[:100]] if long_name is None else [long_name]
    name = b"/".join(part for field in parts if (part := field.partition(b"\0")[0]))
    return OtherEntry(name.decode("utf-8", "surrogateescape"), flag == _FOLDER, stop)


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def _extend(
    overrides: dict[bytes, bytes], flag: int, body: bytes, chained: int
) -> dict[bytes, bytes]:
    """The overrides for the next member, extended by those of one more extended header."""
    if chained > MAX_CHAINED:
        raise _HeaderDamage(f"has more than {MAX_CHAINED} extended headers in a row")
    if flag == _LONG_LINK:
        return overrides
    if flag == _LONG_NAME:
        added = {b"path": _whole_name(gnu_name(body, BLOCK))}
    else:
        added = _pax_overrides(body)
        if flag == _GLOBAL and added:
            raise _HeaderDamage("has a global header that gives all members one name or size")
    # The first header of a chain wins, as in tarfile.
    return added | overrides


def _pax_overrides(body: bytes) -> dict[bytes, bytes]:
    """The name and the size in the records of a PAX header, as far as it has them."""
    if body.startswith(b"%d mtime=" % len(body)) and body.find(b"\n") == len(body) - 1:
        return {}  # a single record, as in nearly every PAX header that Python writes
    overrides: dict[bytes, bytes] = {}
    position = 0
    # Zeros end the records, but where a block begins they stand for one that was lost.
    while position < len(body) and (body[position] or position % BLOCK == 0):
        record = _PAX_RECORD.match(body, position)
        end = position + int(record[1]) if record else 0
        if record is None or not record.end() < end <= len(body) or body[end - 1] != _NEWLINE:
            raise _HeaderDamage("has a damaged PAX header")
        keyword, value = record[2], body[record.end() : end - 1]
        if keyword == b"path":
            overrides[keyword] = _whole_name(value).rstrip(b"/")
        elif keyword == b"size":
            overrides[keyword] = _checked_digits(value)
        elif keyword.startswith(b"GNU.sparse."):
            raise _HeaderDamage("has a sparse member: write the shard without sparse files")
        elif _is_one_bit_off(keyword + b"="):
            raise _HeaderDamage(
                f"has a damaged PAX header: nobody writes {keyword[:_MAX_DIGITS]!r}"
            )
        position = end
    return overrides


def _is_one_bit_off(record: bytes) -> bool:
    """Whether the beginning of a record differs by one bit from a keyword that matters.

    The `=` is compared too: if it is damaged, a `=` in the name itself would end the keyword.
    """
    number = int.from_bytes(record[: len(b"path=")], "big")
    return any(
        (number ^ int.from_bytes(meant, "big")).bit_count() == 1 for meant in (b"path=", b"size=")
    )


def _whole_name(name: bytes) -> bytes:
    """The name that an extended header gives."""
    if not name or 0 in name:
        raise _HeaderDamage("has a damaged long name: zeros stand where it should")
    return name


def _checked_digits(value: bytes) -> bytes:
    """The decimal size of a PAX record."""
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise _HeaderDamage(f"has a damaged PAX header: {value[:_MAX_DIGITS]!r} is no size")
    return value


def _check_end(data: Buffer, position: int, chained: int) -> None:
    """Refuse anything but zeros after the end marker, and extended headers just before it."""
    if chained:
        raise _HeaderDamage("ends after an extended header that belongs to no member")
    start = position + BLOCK  # the end marker itself was read
    while chunk := data[start : start + _TAIL_CHUNK]:
        start += len(chunk)
        if chunk.count(0) != len(chunk):
            raise _HeaderDamage(
                "has data after the end of the archive (two archives glued together?)"
            )
