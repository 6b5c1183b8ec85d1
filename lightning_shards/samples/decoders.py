"""The decoders, by name and by the suffix of a member; those of arrays also for a whole batch.

Raw numbers are the bytes of a C array or of `numpy.ndarray.tofile`, little-endian, with one
dimension, such as token ids.
"""

import io
import json
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from gzip import GzipFile
from importlib import import_module
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.samples.member_bytes import MemberBytes
from lightning_shards.samples.tensors import as_native, load_torch, torch_has

Decoder: TypeAlias = Callable[[bytes], Any]
"""Bytes of a member to a value, whose arrays are writable; raises ValueError or OSError for bytes
that it cannot read."""


@dataclass(frozen=True)
class OwnDecoder:
    """A decoder of the user's own.

    Attributes:
        name: Its name in errors.
        function: Bytes of a member to a value; any error that it raises is one of the sample. It
            draws nothing: no generator is seeded for it.
    """

    name: str
    function: Decoder = field(hash=False)


DecoderChoice: TypeAlias = str | OwnDecoder
"""The name of one of `DECODERS` (or `CLASS`), or a decoder of the user's own."""


class Decoding(NamedTuple):
    """The way from the bytes of a member to its value.

    Attributes:
        decoder: What decodes them.
        is_gzipped: Whether they are unpacked before, as those of `json.gz`.
    """

    decoder: DecoderChoice
    is_gzipped: bool = False

    @property
    def name(self) -> str:
        """Its name in errors."""
        return self.decoder.name if isinstance(self.decoder, OwnDecoder) else self.decoder

    def remedy(self, field: str) -> str:
        """The settings that read what is no whole number, or general advice."""
        if isinstance(self.decoder, OwnDecoder):
            return "repair the shard, or that function"
        if self != Decoding("int"):
            return "repair the shard, or name another decoder in `decode`"
        return (
            f"for other numbers set decode: {{{field}: json}}, for texts set decode: "
            f"{{{field}: text}}; for names of classes set decode: {{{field}: class}} and classes: "
            f"{{{field}: [...]}}, or leave classes out where a classes.json is beside the shards"
        )


def _decode_int(data: bytes) -> int:
    number = int(data)
    if b"_" in data:  # Python reads 1_23 as 123
        raise ValueError(f"{data[:40]} has an underscore, which no number has")
    if not -(2**63) <= number < 2**63:
        raise ValueError("it fits no int64; decode it as 'text'")
    return number


def _decode_pth(data: bytes) -> Any:
    return load_torch().load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _by_images(data: bytes, name: str) -> Any:
    """What a decoder of `samples.images` gives, which is imported with the first image."""
    return getattr(import_module("lightning_shards.samples.images"), name)(data)


_NUMPY = b"\x93NUMPY"
_ZIP = b"PK"
_NUMPY_BYTES = np.frombuffer(_NUMPY, np.uint8)
_MAGIC = _NUMPY + b"\x01"
_NPY_PREFIX = 10
"""Bytes before the header in an .npy file of version 1; the last two hold the header's length."""

_NPY_LONGEST = _NPY_PREFIX + 2**16
"""Most bytes of an .npy file of version 1 up to the end of its header."""

_NUMBERS = ("uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")


def decode_npy(data: bytes) -> np.ndarray:
    """The array in an .npy file, in the machine's byte order; pickled objects are refused."""
    if not data.startswith(_NUMPY):
        kind = "an archive (.npz): decode it as 'npz'" if data.startswith(_ZIP) else "no .npy file"
        raise ValueError(f"this is {kind}")
    layout = _layout(_header(data))
    if layout is None:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        return as_native(array)
    shape, dtype, start = layout
    array = np.frombuffer(data, dtype, prod(shape), start).reshape(shape)
    return array.astype(dtype.newbyteorder("="))  # a copy always; torch has no other order


def _header(begin: bytes) -> bytes:
    """The header of an .npy file of version 1."""
    return begin[: _NPY_PREFIX + int.from_bytes(begin[_NPY_PREFIX - 2 : _NPY_PREFIX], "little")]


@lru_cache(maxsize=64)
def _layout(header: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int] | None:
    """The shape and the type of the array in an .npy file, and where its numbers begin.

    None unless they are plain numbers in C order. It is kept, because parsing costs as much as
    copying 100 kB.
    """
    if not header.startswith(_MAGIC):
        return None
    file = io.BytesIO(header)
    np.lib.format.read_magic(file)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    is_plain = not is_fortran and torch_has(dtype) and min(shape, default=1) > 0
    return (shape, dtype, file.tell()) if is_plain else None


def _decode_numbers(data: bytes, dtype: str) -> np.ndarray:
    if data.startswith(_NUMPY):
        raise ValueError("these are no raw numbers but a file of numpy's: decode it as 'npy'")
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).copy()


def _number_column(members: MemberBytes, dtype: str) -> NDArray[Any] | None:
    rows, kind = members.rows(), np.dtype(dtype)
    if rows is None or rows.shape[1] % kind.itemsize:
        return None
    if (rows[:, : len(_NUMPY)] == _NUMPY_BYTES[: rows.shape[1]]).all(axis=1).any():
        return None  # one of them is an .npy file
    return rows.view(kind)


def npy_column(members: MemberBytes) -> NDArray[Any] | None:
    """The arrays of .npy files as one array; None unless all have the same header.

    The same header means the same shape and type.
    """
    # rows: one file per row, shape (members, file size).
    rows = members.rows()
    if rows is None:
        return None
    header = _header(rows[0, :_NPY_LONGEST].tobytes())
    layout = _layout(header)
    if layout is None:
        return None
    shape, dtype, start = layout
    if not dtype.isnative or rows.shape[1] != start + prod(shape) * dtype.itemsize:
        return None
    if rows[:, :start].tobytes() != header * len(rows):
        return None
    return np.ascontiguousarray(rows[:, start:]).view(dtype).reshape(len(rows), *shape)


_LISTS = (*_NUMBERS, "bool", "int8", "uint32", "uint64")  # of joins
_ARRAYS = {**{dtype: dtype for dtype in _NUMBERS}, **{f"list {dtype}": dtype for dtype in _LISTS}}
"""By decoder the type of the numbers in its arrays."""

COLUMN_DECODERS: dict[str, Callable[[MemberBytes], NDArray[Any] | None]] = {
    "npy": npy_column,
    "float": lambda members: np.array(list(map(float, members.to_list()))),
    **{name: partial(_number_column, dtype=dtype) for name, dtype in _ARRAYS.items()},
}
"""Decoders for all members of a batch at once; None if they do not fit one array."""

MOST_UNPACKED_BYTES = 2**30
"""A member that unpacks to more is taken for a bomb: a file made to fill the memory."""


def gunzip(data: bytes) -> bytes:
    """The bytes in a .gz file, of all its streams.

    Raises:
        ValueError: It is no such file, is empty, cut or damaged, or holds too many bytes.
    """
    if not data:  # gzip takes it for no stream, and gives no bytes
        raise ValueError("its .gz is empty")
    try:
        with GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(MOST_UNPACKED_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"its .gz is damaged: {error}") from error
    if len(unpacked) > MOST_UNPACKED_BYTES:
        raise ValueError(f"its .gz holds more than {MOST_UNPACKED_BYTES} bytes")
    return unpacked


def decode_npz(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays in an .npz archive, by name; pickled objects are refused."""
    if not data.startswith(_ZIP):
        raise ValueError("this is no archive (.npz)")
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        size = sum(entry.file_size for entry in archive.zip.infolist())
        if size > MOST_UNPACKED_BYTES:
            raise ValueError(f"its arrays are {size} bytes, more than {MOST_UNPACKED_BYTES}")
        arrays: dict[str, np.ndarray] = dict(archive)
    return {name: as_native(array) for name, array in arrays.items()}


RAW = "raw"
"""The decoder that leaves the bytes as they are."""

CLASS = "class"
"""The decoder of names of classes; its function is in the field, because each has its own names."""

DECODERS: dict[str, Decoder] = {
    RAW: bytes,
    "text": bytes.decode,
    "int": _decode_int,
    "json": json.loads,
    "npy": decode_npy,
    "npz": decode_npz,
    **{name: partial(_decode_numbers, dtype=dtype) for name, dtype in _ARRAYS.items()},
    "float": float,
    "rgb": partial(_by_images, name="decode_rgb"),
    "gray": partial(_by_images, name="decode_gray"),
    "pil": partial(_by_images, name="decode_pil"),
    "labels": partial(_by_images, name="decode_labels"),
    "pickle": pickle.loads,  # refused unless it is named in allow_unsafe
    "pth": _decode_pth,  # refused unless it is named in allow_unsafe
}

PIXEL_DECODERS = frozenset({"rgb", "gray", "labels"})
IMAGE_DECODERS = PIXEL_DECODERS | {"pil"}
UNSAFE_DECODERS = frozenset({"pickle", "pth"})

_SUFFIX_DECODERS = {
    "int": "cls cls2 class count index inx id",
    "text": "txt text transcript",
    "json": "json jsn",
    "npy": "npy",
    "npz": "npz",
    "rgb": "jpg jpeg png webp gif bmp tif tiff ppm pgm pnm",
    "pickle": "pkl pickle pyd",
    "pth": "pth",
}

_GZ = ".gz"
_BY_SUFFIX = {suffix: name for name, text in _SUFFIX_DECODERS.items() for suffix in text.split()}


def decoding_of(suffix: str, chosen: DecoderChoice | None = None) -> Decoding | None:
    """The way in which members of a suffix are decoded; None if nothing is known of the suffix.

    Members `.gz` are unpacked first, unless they are wanted as `raw`.

    Args:
        suffix: Of the member, without its first dot.
        chosen: The decoder of its field, if the field has one.
    """
    suffix = f".{suffix.lower()}"
    decoder = chosen or _BY_SUFFIX.get(suffix.removesuffix(_GZ).rsplit(".", 1)[-1])
    return None if decoder is None else Decoding(decoder, suffix.endswith(_GZ) and decoder != RAW)


def own_decoder(key: str, value: object) -> DecoderChoice:
    """The decoder that a configuration gives to a field: a name, or a callable.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(value, str):
        return value
    if not callable(value):
        raise ConfigError(
            f"the decoder of {key!r} must be the name of one, a callable from bytes to a value or "
            f"its import path, got {value!r}"
        )
    kind: Any = value if hasattr(value, "__qualname__") else type(value)
    return OwnDecoder(".".join(filter(None, (kind.__module__, kind.__qualname__))), value)
