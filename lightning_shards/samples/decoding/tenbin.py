"""The decoder of `.ten`, webdataset's format of several arrays in one member ("tenbin").

A file is a sequence of chunks, and two of them are an array: its header and its numbers, all of it
little-endian::

    chunk       ~TenBin~ | size in bytes, int64 | that many bytes | zeros up to a multiple of 64
    header      type as text | a note, text of 8 bytes | dimensions, int64 | sides, int64 each
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"~TenBin~"
_WORD = 8
"""Bytes of an int64, and of each text."""

_ALIGNED = 64
_SHORTEST_HEADER = 3 * _WORD
_TYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})


def decode_tenbin(data: bytes) -> list[NDArray[Any]]:
    """The arrays in a .ten file, in order; their notes are left out.

    Raises:
        ValueError: It is no such file, or is cut or damaged.
    """
    chunks = list(_chunks(data))
    if len(chunks) % 2:
        raise ValueError("its last array has a header, and no numbers follow")
    pairs = zip(chunks[::2], chunks[1::2], strict=True)
    return [_array(header, numbers) for header, numbers in pairs]


def _chunks(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        begin = start + len(_MAGIC) + _WORD
        if data[start : start + len(_MAGIC)] != _MAGIC or begin > len(data):
            raise ValueError(f"no chunk of a .ten file begins at its byte {start}")
        size = int.from_bytes(data[begin - _WORD : begin], "little", signed=True)
        if not 0 <= size <= len(data) - begin:
            raise ValueError(f"a chunk speaks of {size} bytes, {len(data) - begin} follow")
        yield data[begin : begin + size]
        start = begin + -(-size // _ALIGNED) * _ALIGNED


def _array(header: bytes, numbers: bytes) -> NDArray[Any]:
    kind = header[:_WORD].rstrip(b"\0").decode("ascii", "replace")
    sides: list[int] = np.frombuffer(header[2 * _WORD :], "<i8").tolist()
    if len(header) < _SHORTEST_HEADER or kind not in _TYPES or sides[0] != len(sides) - 1:
        raise ValueError("the header of an array is damaged, or of a type that .ten does not have")
    shape, dtype = tuple(sides[1:]), np.dtype(f"<{kind}")
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != len(numbers):
        raise ValueError(f"a header speaks of {shape} {dtype}, {len(numbers)} bytes follow")
    return np.frombuffer(numbers, dtype).reshape(shape).copy()
