"""CRC-32 by the fastest library that is installed; every library gives the same number."""

import zlib
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Crc32: TypeAlias = Callable[..., int]
_Sums: TypeAlias = NDArray[np.uint32]


def _fastest() -> _Crc32:
    try:
        fast: _Crc32 = import_module("zlib_ng.zlib_ng").crc32  # extra `checksum`
    except ImportError:
        return zlib.crc32
    return fast


crc32: Final[_Crc32] = _fastest()


def joined_crc32(checksums: _Sums, counts: NDArray[np.int64], size: int) -> _Sums:
    """The crc32 of concatenated members, computed from the crc32 of each; no byte is read.

    It shows damage in any member and a wrong order of members, as a crc32 of all bytes would.

    Args:
        checksums: Crc32 of each member, shape (counts.sum(),).
        counts: Members of each group, at least one.
        size: bytes of each member.

    Returns:
        The crc32 of each group, shape (len(counts),).
    """
    doublings = (int(counts.max()) - 1).bit_length()
    # rows: one group each, shape (len(counts), 2**doublings), filled up in front with 0, which is
    # the crc32 of no bytes. Each pass joins neighbouring columns in pairs, until one is left.
    rows = np.zeros((len(counts), 2**doublings), np.uint32)
    rows[np.arange(2**doublings) >= 2**doublings - counts[:, np.newaxis]] = checksums
    for doubled in range(doublings):
        rows = _followed(rows[:, ::2], _tables(size, doubled)) ^ rows[:, 1::2]
    return rows[:, 0]


def _followed(checksums: _Sums, tables: list[_Sums]) -> _Sums:
    """The share of these crc32s in the crc32 of longer bytes, to be xored with that of the rest.

    How many bytes the rest has is fixed by the tables.
    """
    parts = [table[checksums >> 8 * byte & 255] for byte, table in enumerate(tables)]
    return np.bitwise_xor.reduce(parts)


@lru_cache(maxsize=256)
def _tables(size: int, doubled: int) -> list[_Sums]:
    """`_followed` of each value of each byte of a crc32, if `size * 2**doubled` bytes follow."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if doubled:
        half = _tables(size, doubled - 1)
        bits = _followed(_followed(bits, half), half)
    else:
        zeros = bytes(size)
        bits = [zlib.crc32(zeros, bit) ^ zlib.crc32(zeros) for bit in bits.tolist()]
    tables: list[_Sums] = []
    for first in range(0, 32, 8):
        table = np.zeros(1, np.uint32)
        for bit in bits[first : first + 8]:  # the function is linear in the bits
            table = np.concatenate([table, table ^ np.uint32(bit)])
        tables.append(table)
    return tables
