"""The layout of a tar: the offsets of all headers, and the members that are in no sample.

A member table has the offsets of data and not of headers, and leaves out members that are in no
sample. The gaps between the data of members hold headers and such members. Nearly all gaps are one
header of 512 bytes, or an extended header and a header, which is seen from their size and first
bytes; all others are walked. The tar was walked before, so its headers are sound.
"""

from dataclasses import dataclass
from itertools import chain
from os import PathLike, fspath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.tar.blocks import BLOCK, up_to_block
from lightning_shards.shards.tar.tar_bytes import TarBytes, open_tar
from lightning_shards.shards.tar.walk import OtherEntry, split_name, walk_members

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
    """Find the headers of a tar by its current table.

    Raises:
        DamagedShardError: The tar was changed since the table was made.
    """
    # Gap i lies before the data of member i: bytes starts[i] to stops[i], shape (num_members,).
    stops = table.offsets
    ends = up_to_block(table.offsets + table.sizes)
    starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    headers = starts.copy()
    passed_over: list[PassedOver] = []
    with open_tar(path) as data:
        for gap in np.flatnonzero(~_is_plain(data, starts, stops)).tolist():
            in_gap, headers[gap] = _walk_gap(data, fspath(path), int(starts[gap]), int(stops[gap]))
            passed_over += in_gap
        last = int(ends[-1]) if len(ends) else 0
        in_gap, end = _walk_gap(data, fspath(path), last, None)
    return TarLayout(headers, end, (*passed_over, *in_gap))


def _is_plain(
    data: TarBytes, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """For each gap, whether it is one header, or one extended header and one header."""
    # candidates: numbers of the gaps that may hold an extended header, by their length.
    lengths = stops - starts
    plain = lengths == BLOCK
    candidates = np.flatnonzero(lengths == _ONE_EXTENDED)
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


def _walk_gap(
    data: TarBytes, url: str, start: int, stop: int | None
) -> tuple[list[PassedOver], int]:
    """What is in a gap and in no sample, and the offset of the first header behind that.

    That is the header of the member whose data begins at `stop`; if that is None, it is the end
    marker.
    """
    passed_over: list[PassedOver] = []
    others: list[OtherEntry] = []
    for member in chain(walk_members(data, url, start, others), [None]):
        for entry in others:
            passed_over.append(PassedOver(entry.name, start, entry.kind))
            start = up_to_block(entry.stop)
        others.clear()
        if member is None or member.offset == stop:
            break
        passed_over.append(PassedOver(member.name, start, kind_of_name(member.name)))
        start = up_to_block(member.offset + member.size)
    return passed_over, start


def kind_of_name(name: str) -> str:
    """Why a regular file of this name is in no sample."""
    if split_name(name) is not None:
        return "left out by __bad__"
    return "reserved name" if "__" in name else "name without a field"
