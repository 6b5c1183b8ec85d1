"""The walk over a damaged tar: its members before, between and after damaged ranges.

Behind a damaged header the next sound one is searched. If it may be the end of a chain whose
extended header was lost, its member is not given: its name stood there, and the one in its own
header is a stand-in, such as `caf?.jpg` for `café.jpg`, or the first 100 bytes of a longer one.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.tar.blocks import BLOCK, up_to_block
from lightning_shards.shards.tar.compression import is_tar_header
from lightning_shards.shards.tar.tar_bytes import TarBytes
from lightning_shards.shards.tar.walk import Buffer, Member, walk_members

_FLAG: Final = 156
_SIZE: Final = slice(124, 136)
_MAGIC = b"ustar"
_MAGIC_AT: Final = 257
_EXTENDED = b"xXgLK"
_WITH_DATA = b"0\x007xXgLK"
_WITHOUT_DATA = b"123456"
"""Types of headers. Each differs in two bits or more from those that begin a chain or end it."""

_SEARCHED: Final = 1 << 20
"""Bytes that are read at once to search the next header."""

MOST_END: Final = 10_240 + 2 * BLOCK
"""Zeros at the end of an archive: two blocks, and what fills the last record of tar."""

_PAGE: Final = 4096
"""Bytes that a file system loses at least, and gives as zeros."""


class DamagedRange(NamedTuple):
    """A range of a tar that could not be read, or a member whose name may be lost.

    Attributes:
        offset: Where it begins.
        message: What is not known of it; empty if nothing can be missing there, as between two
            archives that were glued together.
    """

    offset: int
    message: str


def walk_around_damage(data: TarBytes, url: str) -> Iterator[Member | DamagedRange]:
    """The members whose names are known, and the damaged ranges, in file order."""
    start: int | None = 0
    nameless = -1  # offset of the data of a member whose extended header may be lost
    while start is not None:
        position = start
        try:
            for member in walk_members(_from(data, start), url):
                offset = start + member.offset
                if offset == nameless:
                    yield DamagedRange(offset, _NAMELESS.format(offset, member.name))
                else:
                    yield member._replace(offset=offset)
                position = up_to_block(offset + member.size)
        except DamagedShardError:
            start = _next_header(data, position + BLOCK)
            if start is None:
                yield DamagedRange(position, _UNREAD.format(f"from byte {position:,} on"))
            elif _is_end(data, position, start):
                yield DamagedRange(position, "")
            else:
                place = f"of bytes {position:,} to {start:,}"
                yield DamagedRange(position, _UNREAD.format(place))
                nameless = start + BLOCK if _may_lack_name(data, position, start) else -1
        else:
            return


_UNREAD: Final = "nothing can be read {}, and what stood there is not known"
_NAMELESS: Final = (
    "the member at byte {:,} may have lost its name: it is left out, and its own header calls it "
    "{!r}"
)


def _is_end(data: TarBytes, start: int, found: int) -> bool:
    """Whether there are only the zeros of the end of an archive between two headers.

    They may also be pages that were lost, with an extended header in them. Those would reach up to
    the header that was found, and begin at a multiple of their size, or in the member before.
    """
    if found - start > MOST_END or any(data[start:found]):
        return False
    return bool(found % _PAGE or (start % _PAGE and any(data[start - BLOCK : start])))


def _may_lack_name(data: TarBytes, start: int, found: int) -> bool:
    """Whether an extended header before the one that was found may be lost.

    It is not if the headers from `start` on can still be followed to the one that was found, and
    the last of them is a member's. An extended header begins a chain: writers give a name in one.
    """
    if data[found : found + BLOCK][_FLAG] in _EXTENDED:
        return False
    is_chained = False
    while start < found:
        header = data[start : start + BLOCK]
        flag, digits = header[_FLAG], header[_SIZE].strip(b" \0")
        is_known = header.startswith(_MAGIC, _MAGIC_AT) and flag in _WITH_DATA + _WITHOUT_DATA
        if not is_known or digits.strip(b"01234567"):
            return True
        is_chained = flag in _EXTENDED
        size = int(digits or b"0", 8) if flag in _WITH_DATA else 0
        start = up_to_block(start + BLOCK + size)
    return is_chained or start != found


def _next_header(data: TarBytes, start: int) -> int | None:
    """The offset of the next sound header; tars from before POSIX have no magic to search for."""
    for begin in range(start, len(data), _SEARCHED):
        part = data[begin : begin + _SEARCHED]
        for block in range(0, len(part), BLOCK):
            if part.startswith(_MAGIC, block + _MAGIC_AT) and is_tar_header(
                part[block : block + BLOCK]
            ):
                return begin + block
    return None


def _from(data: TarBytes, start: int) -> Buffer:
    """The bytes from `start` on, for a walk; only the parts that it reads are copied."""
    return _Rest(data, start) if start else data


class _Rest:
    """The bytes of a tar from an offset on, read on demand."""

    def __init__(self, data: TarBytes, start: int) -> None:
        self._data, self._start = data, start

    def __len__(self) -> int:
        return len(self._data) - self._start

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, _ = part.indices(len(self))
        return self._data[self._start + start : self._start + stop]
