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
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from lightning_shards.samples.member_bytes import FieldMembers
from lightning_shards.samples.tensors import NUMBERS, load_torch, torch_has
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


class _ArrayLayout(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def decode_npy(data: bytes) -> np.ndarray:
    """The array in an .npy file, in the machine's byte order; pickled objects are refused."""
    if not data.startswith(_NUMPY):
        kind = "an archive (.npz): decode it as 'npz'" if data.startswith(_ZIP) else "no .npy file"
        raise ValueError(f"this is {kind}")
    start = _NPY_PREFIX + int.from_bytes(data[_NPY_PREFIX - 2 : _NPY_PREFIX], "little")
    header = _header(data[:start] if data.startswith(_MAGIC) else data[:_NPY_LONGEST])
    size, available = prod(header.shape) * max(header.dtype.itemsize, 1), len(data) - header.stop
    are_sides = all(side >= 0 for side in header.shape)
    if not are_sides or (size > available and not header.dtype.hasobject):
        # Raised before memory is allocated for the array.
        raise ValueError(f"its header speaks of {size} bytes, {available} follow")
    native = header.dtype.newbyteorder("=")  # torch has no other
    if header.dtype.kind not in NUMBERS or header.is_fortran or not size:
        array = np.lib.format.read_array(BytesIO(data), allow_pickle=False)
        return array.astype(native, copy=False)
    count = prod(header.shape)
    array = np.frombuffer(data, header.dtype, count, header.stop).reshape(header.shape)
    return array.astype(native)  # a copy always


class _Header(NamedTuple):
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    stop: int


@lru_cache(maxsize=64)
def _header(begin: bytes) -> _Header:
    """The parsed header of an .npy file; kept, because parsing costs as much as copying 100 kB."""
    file = BytesIO(begin)
    is_first = np.lib.format.read_magic(file) == (1, 0)
    layout = np.lib.format
    read = layout.read_array_header_1_0 if is_first else layout.read_array_header_2_0
    return _Header(*read(file), file.tell())


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
    return _column(rows, _ArrayLayout((rows.shape[1] // kind.itemsize,), kind))


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
    first = rows[0, :_NPY_LONGEST].tobytes()
    start = _NPY_PREFIX + int.from_bytes(first[_NPY_PREFIX - 2 : _NPY_PREFIX], "little")
    header = first[:start]
    layout = _layout(header)
    if layout is None:
        return None
    if rows.shape[1] != start + prod(layout.shape) * layout.dtype.itemsize:
        return None
    if rows[:, :start].tobytes() != header * len(rows):
        return None
    return _column(np.ascontiguousarray(rows[:, start:]), layout)


def _column(rows: NDArray[np.uint8], layout: _ArrayLayout) -> NDArray[Any]:
    return rows.view(layout.dtype).reshape(len(rows), *layout.shape)


@lru_cache(maxsize=64)
def _layout(header: bytes) -> _ArrayLayout | None:
    """The shape and type in the header of an .npy file; None unless plain numbers in C order."""
    if not header.startswith(_MAGIC):
        return None
    shape, is_fortran, dtype, _ = _header(header)
    if is_fortran or not torch_has(dtype) or not dtype.isnative or 0 in shape:
        return None
    return _ArrayLayout(shape, dtype)


def _decode_json_numbers(data: bytes, dtype: str) -> NDArray[Any]:
    array = np.array(json.loads(data))  # lists of several lengths raise
    is_number = array.dtype.kind in "if" and np.can_cast(array.dtype, dtype, "same_kind")
    if not is_number and array.size:
        raise ValueError(f"it holds {array.dtype}, of which there is no array of {dtype}")
    ascii_bytes = data.replace(b"\0", b"")  # those of UTF-16, too
    if array.size and (b"true" in ascii_bytes or b"false" in ascii_bytes):
        raise ValueError("it holds true or false among numbers")
    if dtype != "float32":
        return array.astype(dtype)
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError as error:
        largest = array.flat[np.argmax(np.where(np.isfinite(array), np.abs(array), 0))]
        raise ValueError(f"it holds numbers that fit no {dtype}, as {largest}") from error


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

_NPY = ".npy"


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
            methods = {entry.compress_type for entry in entries} - {ZIP_STORED, ZIP_DEFLATED}
            if methods:  # zipfile unpacks others without a bound
                raise ValueError(f"it is compressed by method {min(methods)}, unknown to numpy")
            arrays: dict[str, np.ndarray] = {}
            for entry in entries:
                with archive.open(entry) as file:
                    # with its size: otherwise more than that might be unpacked
                    arrays[entry.filename.removesuffix(_NPY)] = decode_npy(
                        file.read(entry.file_size)
                    )
    except BadZipFile as error:
        raise ValueError(f"this is no whole archive (.npz): {error}") from error
    return arrays
