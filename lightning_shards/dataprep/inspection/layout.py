"""The layout of a tar: the offsets of all headers, and the members that are in no sample.

A member table has the offsets of data and not of headers, and leaves out members that are in no
sample. The gaps between the data of members hold headers and such members. Nearly all gaps are one
header of 512 bytes, or an extended header and a header, which is seen from their size and first
bytes; all others are read by `tarfile`. The tar was walked before, so its headers are sound.
"""

import os
import tarfile
from dataclasses import dataclass
from os import PathLike
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.regular_files import open_regular
from lightning_shards.shards.tar.blocks import BLOCK, up_to_block
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import split_name

_FLAG: Final = 156
_SIZE: Final = slice(124, 135)  # eleven octal digits
_EXTENDED: Final = np.frombuffer(b"xL", np.uint8)
_REGULAR: Final = np.frombuffer(b"\x000", np.uint8)
_ONE_EXTENDED: Final = 3 * BLOCK  # an extended header, a body of one block, the member's header
_ZERO: Final = ord("0")
_GAPS_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A member of a tar that is in no sample.

    Attributes:
        name: Its name in the tar.
        offset: Offset of its first header, in bytes from the start of the tar.
        kind: `folder`, `link`, `special file`, `name without a field`, `reserved name` or `left out
            by __bad__`.
    """

    name: str
    offset: int
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class TarLayout:
    """The offsets of the headers of a tar.

    Attributes:
        headers: Offset of the first header of each member, int64, shape (num_members,).
        end: Offset of the end marker of the archive.
        passed_over: The members that are in no sample, in file order.
    """

    headers: NDArray[np.int64]
    end: int
    passed_over: tuple[PassedOver, ...]

    def sample_starts(self, table: MemberTable) -> NDArray[np.int64]:
        """Offsets of the first header of each sample, and of the end marker."""
        return np.append(self.headers[table.sample_starts[:-1]], self.end)


def lay_out(table: MemberTable, path: str | PathLike[str]) -> TarLayout:
    """Find the headers of a tar by its current table."""
    # Gap i lies before the data of member i: bytes starts[i] to stops[i], shape (num_members,).
    stops = table.offsets
    ends = up_to_block(table.offsets + table.sizes)
    starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    headers = starts.copy()
    passed_over: list[PassedOver] = []
    with os.fdopen(open_regular(path), "rb") as file:
        for gap in np.flatnonzero(~_is_plain(path, starts, stops)):
            members = _read_gap(file, int(starts[gap]), int(stops[gap]))
            headers[gap] = members[-1].offset
            passed_over += map(_as_passed_over, members[:-1])
        last = int(ends[-1]) if len(ends) else 0
        members = _read_gap(file, last, None)
        passed_over += map(_as_passed_over, members)
    end = _end_of(members[-1]) if members else last
    return TarLayout(headers, end, tuple(passed_over))


def _is_plain(
    path: str | PathLike[str], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """For each gap, whether it is one header, or one extended header and one header."""
    # candidates: numbers of the gaps that may hold an extended header, by their length.
    lengths = stops - starts
    plain = lengths == BLOCK
    candidates = np.flatnonzero(lengths == _ONE_EXTENDED)
    if not len(candidates):
        return plain
    with open_tar(path) as data:
        for begin in range(0, len(candidates), _GAPS_AT_ONCE):
            gaps = candidates[begin : begin + _GAPS_AT_ONCE]
            parts = [data[start : start + _ONE_EXTENDED] for start in starts[gaps].tolist()]
            plain[gaps] = _have_one_extended(b"".join(parts))
    return plain


def _have_one_extended(gaps: bytes) -> NDArray[np.bool_]:
    """For each of these gaps, whether it is an extended header with its body, and one header."""
    # blocks: one gap per row, shape (num_gaps, _ONE_EXTENDED).
    # digits: the size field of the extended header as octal digits, shape (num_gaps, 11).
    blocks = np.frombuffer(gaps, np.uint8).reshape(-1, _ONE_EXTENDED)
    digits = blocks[:, _SIZE].astype(np.int64) - _ZERO
    size = digits @ (8 ** np.arange(_SIZE.stop - _SIZE.start)[::-1])
    return (
        np.isin(blocks[:, _FLAG], _EXTENDED)
        & np.isin(blocks[:, 2 * BLOCK + _FLAG], _REGULAR)
        & (digits >= 0).all(axis=1)
        & (size > 0)
        & (size <= BLOCK)
    )


def _read_gap(file: BinaryIO, start: int, stop: int | None) -> list[tarfile.TarInfo]:
    """The members whose headers begin in a gap, up to the one whose data begins at `stop`."""
    members: list[tarfile.TarInfo] = []
    file.seek(start)
    archive = tarfile.TarFile(fileobj=file, errorlevel=0)
    while (member := archive.next()) is not None:
        members.append(member)
        if member.offset_data == stop:
            break
    return members


def _as_passed_over(member: tarfile.TarInfo) -> PassedOver:
    return PassedOver(member.name, member.offset, _kind(member))


def _kind(member: tarfile.TarInfo) -> str:
    """Why a member is in no sample."""
    if member.isdir():
        return "folder"
    if member.issym() or member.islnk():
        return "link"
    if not member.isreg():
        return "special file"
    return kind_of_name(member.name)


def kind_of_name(name: str) -> str:
    """Why a regular file of this name is in no sample."""
    if split_name(name) is not None:
        return "left out by __bad__"
    return "reserved name" if "__" in name else "name without a field"


def _end_of(member: tarfile.TarInfo) -> int:
    """The offset at which the next header would begin."""
    size = member.size if member.isreg() else 0
    return up_to_block(member.offset_data + size)
