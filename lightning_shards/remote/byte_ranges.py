"""The arithmetic of ranges of bytes: of pieces, of their parts, and of members read by themselves.

Samples become bytes by the member table of their shard. All arrays are int64.
"""

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.int64]

MOST_IN_ONE_REQUEST: Final = 8 << 20
"""Bytes that are asked for in one request; of what has more, the parts are fetched at once."""

LARGE_SAMPLE: Final = 1 << 20
"""Mean bytes of a sample from which on samples are fetched one by one: such a request is long
enough by itself, and of a piece a batch would use a small part only."""


REQUEST_BYTES: Final = 2_400_000
"""A request takes as much longer than its bytes as so many bytes take: 30 ms at 80 MB/s."""


class Ranges(NamedTuple):
    """Ranges of bytes of one shard, and which members are in each.

    Attributes:
        begins: The first byte of each, shape (ranges,).
        ends: The byte behind its last one.
        firsts: The number of its first member.
    """

    begins: _Ints
    ends: _Ints
    firsts: _Ints


def bytes_of_samples(
    sample_starts: _Ints, offsets: _Ints, sizes: _Ints, samples: tuple[_Ints, _Ints]
) -> tuple[_Ints, _Ints]:
    """Begin and end of the bytes that hold all members of consecutive samples of a shard.

    Args:
        sample_starts: The first member of each sample, and their number, as in a member table.
        offsets: Of each member, ascending.
        sizes: Bytes of each member.
        samples: First sample of each piece, and the sample behind its last one.

    Returns:
        Two arrays of shape (pieces,). A piece without a member begins and ends at 0.
    """
    firsts, stops = sample_starts[samples[0]], sample_starts[samples[1]]
    is_empty = firsts >= stops
    if not len(offsets):
        return np.zeros_like(firsts), np.zeros_like(firsts)
    lasts = np.where(is_empty, 0, stops - 1)
    begins = offsets[np.where(is_empty, 0, firsts)]
    return np.where(is_empty, 0, begins), np.where(is_empty, 0, offsets[lasts] + sizes[lasts])


def parts_of(begin: int, end: int, most: int = MOST_IN_ONE_REQUEST) -> list[tuple[int, int]]:
    """A range in as few parts as have at most so many bytes; they differ by one byte at most.

    >>> parts_of(10, 31, most=8)
    [(10, 17), (17, 24), (24, 31)]
    >>> parts_of(5, 5)
    []
    """
    number = -(-(end - begin) // most)
    cuts = [begin + (end - begin) * part // number for part in range(number + 1)] if number else []
    return list(pairwise(cuts))


def joined(begins: _Ints, ends: _Ints, gap: int, most: int = MOST_IN_ONE_REQUEST) -> Ranges:
    """Ranges with the gaps between them, where a gap is cheaper than a request of its own.

    Args:
        begins: The first byte of each member, ascending; members may overlap.
        ends: The byte behind its last one.
        gap: Bytes between neighbours up to which they are read together.
        most: Bytes of a joined range at most, about; a member that has more is read whole.

    Returns:
        In each range, members from its first one up to the first one of the next range.
    """
    if not len(begins):
        return Ranges(begins, ends, begins)
    reached = np.maximum.accumulate(ends)
    # Where the limit of bytes cuts is counted from the first member, so that it needs no loop.
    sections = (begins - begins[0]) // most
    is_first = np.ones(len(begins), np.bool_)
    is_first[1:] = (begins[1:] > reached[:-1] + gap) | (sections[1:] != sections[:-1])
    firsts = np.flatnonzero(is_first)
    return Ranges(begins[firsts], np.maximum.reduceat(ends, firsts), firsts)


def is_sample_the_unit(size_bytes: int, samples: int) -> bool:
    """Whether samples are fetched one by one, because they are large."""
    return size_bytes >= LARGE_SAMPLE * max(samples, 1)


def is_whole_faster(
    pieces: NDArray[Any], samples: NDArray[Any], uses: NDArray[Any]
) -> NDArray[np.bool_]:
    """Whether whole pieces take less time than the samples of them that are used, one by one.

    Args:
        pieces: Bytes of each piece.
        samples: Mean bytes of a sample in it.
        uses: How many of its samples are used.
    """
    return pieces + REQUEST_BYTES <= uses * (samples + REQUEST_BYTES)
