"""Decoders of arrays, alone and of a whole batch: `.npy`, numbers, `.safetensors`; `.npz`, `.gz`.

Raw numbers are the bytes of a C array or of `numpy.ndarray.tofile`, little-endian, with one
dimension, such as token ids. No other module knows safetensors.
"""

import json
import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from gzip import GzipFile
from importlib import import_module
from io import BytesIO
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from lightning_shards.samples.member_bytes import FieldMembers
from lightning_shards.samples.tensors import load_torch, torch_has
from lightning_shards.shards.joins.settings import SCALAR_DTYPES

if TYPE_CHECKING:
    import torch


_NUMPY = b"\x93NUMPY"
_ZIP = b"PK"
_NUMPY_BYTES = np.frombuffer(_NUMPY, np.uint8)
_MAGIC = _NUMPY + b"\x01"
_NPY_PREFIX = 10
"""Bytes before the header in an .npy file of version 1; the last two hold the header's length."""

_NPY_LONGEST = _NPY_PREFIX + 2**16
"""Most bytes of an .npy file of version 1 up to the end of its header."""

_NUMBERS = ("uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")


class _Layout(NamedTuple):
    """The shape and the type of an array, and where in its .npy file its numbers begin."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int


def decode_npy(data: bytes) -> np.ndarray:
    """The array in an .npy file, in the machine's byte order; pickled objects are refused."""
    if not data.startswith(_NUMPY):
        kind = "an archive (.npz): decode it as 'npz'" if data.startswith(_ZIP) else "no .npy file"
        raise ValueError(f"this is {kind}")
    layout = _layout(_header(data))
    if layout is None:
        array = np.lib.format.read_array(BytesIO(data), allow_pickle=False)
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    shape, dtype, start = layout
    array = np.frombuffer(data, dtype, prod(shape), start).reshape(shape)
    return array.astype(dtype.newbyteorder("="))  # a copy always; torch has no other order


def _header(begin: bytes) -> bytes:
    """The header of an .npy file of version 1."""
    return begin[: _NPY_PREFIX + int.from_bytes(begin[_NPY_PREFIX - 2 : _NPY_PREFIX], "little")]


@lru_cache(maxsize=64)
def _layout(header: bytes) -> _Layout | None:
    """What the header of an .npy file says; None unless it is of plain numbers in C order.

    It is kept, because parsing costs as much as copying 100 kB.
    """
    if not header.startswith(_MAGIC):
        return None
    file = BytesIO(header)
    np.lib.format.read_magic(file)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    is_plain = not is_fortran and torch_has(dtype) and min(shape, default=1) > 0
    return _Layout(shape, dtype, file.tell()) if is_plain else None


def decode_safetensors(data: bytes) -> "torch.Tensor | dict[str, torch.Tensor]":
    """The tensor in a safetensors file; if there are several, all of them by name."""
    load_torch()
    tensors: dict[str, torch.Tensor] = import_module("safetensors.torch").load(data)
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    return dict(sorted(tensors.items()))  # the library gives them in no fixed order


def _decode_numbers(data: bytes, dtype: str) -> np.ndarray:
    if data.startswith(_NUMPY):
        raise ValueError("these are no raw numbers but a file of numpy's: decode it as 'npy'")
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).copy()


def _number_column(members: FieldMembers, dtype: str) -> NDArray[Any] | None:
    rows, kind = members.rows(), np.dtype(dtype)
    if rows is None or rows.shape[1] % kind.itemsize:
        return None
    if (rows[:, : len(_NUMPY)] == _NUMPY_BYTES[: rows.shape[1]]).all(axis=1).any():
        return None  # one of them is an .npy file
    return rows.view(kind)


def _decode_scalar(data: bytes, dtype: str) -> Any:
    return np.frombuffer(data, dtype)[0].item()


def _scalar_column(members: FieldMembers, dtype: str) -> NDArray[Any] | None:
    rows = members.rows()
    return None if rows is None else rows.view(np.dtype(dtype)).reshape(len(rows))


def npy_column(members: FieldMembers) -> NDArray[Any] | None:
    """The arrays of .npy files as one array; None unless all have the same header.

    The same header means the same shape and type.
    """
    # rows: one file per row, shape (members, file size).
    rows = members.rows()
    if rows is None:
        return None
    header = _header(rows[0, :_NPY_LONGEST].tobytes())
    layout = _layout(header)
    if layout is None or not layout.dtype.isnative:
        return None
    shape, dtype, start = layout
    if rows.shape[1] != start + prod(shape) * dtype.itemsize:
        return None
    if rows[:, :start].tobytes() != header * len(rows):
        return None
    return np.ascontiguousarray(rows[:, start:]).view(dtype).reshape(len(rows), *shape)


def _decode_json_numbers(data: bytes, dtype: str) -> NDArray[Any]:
    array = np.array(json.loads(data))  # lists of several lengths raise
    is_number = array.dtype.kind in "if" and np.can_cast(array.dtype, dtype, "same_kind")
    if not is_number and array.size:
        raise ValueError(f"it holds {array.dtype}, of which there is no array of {dtype}")
    with np.errstate(over="raise"):
        return array.astype(dtype)


JSON_DECODERS: dict[str, Callable[[bytes], Any]] = {
    f"json_{dtype}": partial(_decode_json_numbers, dtype=dtype)
    for dtype in ("int64", "float32", "float64")
}
"""Decoders of a number, a list of numbers, or lists in lists, by the name of the array's type."""

NUMBER_DECODERS: dict[str, Callable[[bytes], Any]] = {
    dtype: partial(_decode_numbers, dtype=dtype) for dtype in _NUMBERS
}
"""Decoders of raw numbers, by the name of their type."""

NUMBER_COLUMNS: dict[str, Callable[[FieldMembers], NDArray[Any] | None]] = {
    dtype: partial(_number_column, dtype=dtype) for dtype in _NUMBERS
}
"""Decoders of raw numbers for the members of a batch; None if they do not fit one array."""

SCALAR_DECODERS: dict[object, Callable[[bytes], Any]] = {
    kind: partial(_decode_scalar, dtype=dtype) for kind, dtype in SCALAR_DTYPES.items()
}
"""Decoders of single numbers from joins; no configuration can name them."""

SCALAR_COLUMNS: dict[str, Callable[[FieldMembers], NDArray[Any] | None]] = {
    kind: partial(_scalar_column, dtype=dtype) for kind, dtype in SCALAR_DTYPES.items()
}
"""The same for the values of a batch, as one array."""

MOST_UNPACKED_BYTES = 2**30
"""A member that unpacks to more is taken for a bomb: a file made to fill the memory."""

MOST_OBJECT_BYTES = 2**25
"""The same of what becomes Python objects: they take up to 24 times the bytes of JSON."""

_PIECE = 2**20
"""Bytes that are unpacked at once."""


def gunzip(data: bytes, most: int) -> bytes:
    """The bytes in a .gz file, of all its streams.

    Raises:
        ValueError: It is no such file, is empty, cut or damaged, or holds more than `most` bytes.
    """
    if not data:  # gzip takes it for no stream, and gives no bytes
        raise ValueError("its .gz is empty")
    unpacked = bytearray()
    try:
        with GzipFile(fileobj=BytesIO(data)) as file:
            while piece := file.read(_PIECE):
                unpacked += piece
                if len(unpacked) > most:
                    raise ValueError(f"its .gz holds more than {most} bytes")
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"its .gz is damaged: {error}") from error
    return bytes(unpacked)


def decode_npz(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays in an .npz archive, by name; pickled objects are refused."""
    try:
        with ZipFile(BytesIO(data)) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if size > MOST_UNPACKED_BYTES:
                raise ValueError(f"its arrays are {size} bytes, more than {MOST_UNPACKED_BYTES}")
            arrays: dict[str, np.ndarray] = {}
            for entry in entries:
                with archive.open(entry) as file:
                    data = file.read(entry.file_size)  # otherwise it might unpack to more
                arrays[entry.filename.removesuffix(".npy")] = decode_npy(data)
    except BadZipFile as error:
        raise ValueError(f"this is no whole archive (.npz): {error}") from error
    return arrays
