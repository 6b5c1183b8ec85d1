"""Values of Arrow columns as bytes, which the decoder of their kind turns into values again.

A kind is the name of a decoder of `samples.decoders`: texts and bytes stay what they are, single
numbers become 8 bytes (a bool 1), lists of numbers their own bytes or a .npy file, and nested
values JSON. That of .npy files has the dimensions and the type of the arrays after the name.
"""

import json
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SCALAR_DTYPES: Final = {"one int64": "<i8", "one float64": "<f8", "one bool": "?"}
"""Kinds of single numbers, and the type of their bytes."""

RAW_LISTS: Final = frozenset(
    ("uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
)
"""Kinds of lists of numbers whose bytes a decoder reads as they are."""

NPY: Final = "npy"
"""The decoder of arrays, of which some numbers have no bytes that `RAW_LISTS` reads."""

_SPELLED: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}


def value_type(kind: Any, arrow: Any) -> Any:
    """The type of the values of a column, which may be written as a dictionary."""
    return kind.value_type if arrow.types.is_dictionary(kind) else kind


def value_kind(kind: Any, arrow: Any) -> str | None:
    """How values of an Arrow type are kept; None if there is no way."""
    types = arrow.types
    if isinstance(kind, arrow.FixedShapeTensorType):
        is_in_order = kind.permutation in (None, list(range(len(kind.shape))))
        is_kept = is_in_order and _is_number(kind.value_type, types)
        return f"{NPY} {len(kind.shape)} {_dtype(kind.value_type)}" if is_kept else None
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "raw"
    if _is_text(kind, types):
        return "text"
    if _is_number(kind, types):
        return f"one {'bool' if types.is_boolean(kind) else _widest(kind, types)}"
    if _is_list(kind, types) and _is_number(kind.value_type, types):
        name = _dtype(kind.value_type)
        return name if name in RAW_LISTS else f"{NPY} 1 {name}"
    return "json" if _is_json(kind, types) else None


def npy_type(kind: str) -> tuple[str, int] | None:
    """The type and the dimensions of the arrays of a kind of .npy files; None for other kinds.

    >>> npy_type("npy 1 int8"), npy_type("float32")
    (('int8', 1), None)
    """
    name, _, arrays = kind.partition(" ")
    ndim, _, dtype = arrays.partition(" ")
    return (dtype, int(ndim)) if name == NPY else None


def as_keys(column: Any, arrow: Any) -> list[bytes | None]:
    """The keys in an Arrow array; whole numbers as their decimal text."""
    column = _plain(column, arrow)
    if arrow.types.is_integer(column.type):
        column = column.cast(arrow.string())
    return column.cast(arrow.large_binary()).to_pylist()


def as_values(column: Any, kind: str, arrow: Any) -> list[bytes | None]:
    """The values in an Arrow array as bytes.

    Raises:
        ValueError: One has no such bytes.
    """
    column = _plain(column, arrow)
    if kind in ("text", "raw"):
        return column.cast(arrow.large_binary()).to_pylist()
    if kind == "json":
        return [
            None if value is None else json.dumps(value, ensure_ascii=False).encode()
            for value in column.to_pylist()
        ]
    are_there = column.is_valid().to_pylist()
    values = iter(_numbers(column.drop_null(), kind, arrow))
    return [next(values) if is_there else None for is_there in are_there]


def _numbers(column: Any, kind: str, arrow: Any) -> Sequence[bytes]:
    """The bytes of numbers, or of lists of numbers, in an array without nulls."""
    if kind in SCALAR_DTYPES:
        numbers = _array(column)
        if numbers.dtype == np.uint64 and len(numbers) and numbers.max() >= 1 << 63:
            raise ValueError(f"holds {numbers.max()}, which fits no int64; write it as text")
        return _cut(numbers.astype(SCALAR_DTYPES[kind]), np.arange(len(numbers) + 1))
    shape: tuple[int, ...] = ()
    if isinstance(column.type, arrow.FixedShapeTensorType):
        shape, column = tuple(column.type.shape), column.storage
    lists = column.flatten()
    if lists.null_count:
        raise ValueError("has lists in which numbers are null; fill these in")
    lengths = column.value_lengths() if hasattr(column, "value_lengths") else None
    size = getattr(column.type, "list_size", 0)
    counts = np.full(len(column), size) if lengths is None else _array(lengths)
    stops = np.concatenate([[0], np.cumsum(counts)])
    numbers = _array(lists)
    if npy_type(kind) is None:
        return _cut(numbers.astype(numbers.dtype.newbyteorder("<")), stops)
    pairs = pairwise(stops.tolist())
    return [_as_npy(numbers[start:stop].reshape(shape or -1)) for start, stop in pairs]


def _cut(numbers: NDArray[Any], stops: NDArray[Any]) -> list[bytes]:
    data = numbers.tobytes()
    return [data[a:b] for a, b in pairwise((stops * numbers.itemsize).tolist())]


def _as_npy(array: NDArray[Any]) -> bytes:
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _array(column: Any) -> NDArray[Any]:
    return column.to_numpy(zero_copy_only=False)


def _plain(column: Any, arrow: Any) -> Any:
    return column.dictionary_decode() if arrow.types.is_dictionary(column.type) else column


def _dtype(kind: Any) -> str:
    """The name that numpy has for numbers of this type."""
    return _SPELLED.get(str(kind), str(kind))


def _widest(kind: Any, types: Any) -> str:
    return "int64" if types.is_integer(kind) else "float64"


def _is_text(kind: Any, types: Any) -> bool:
    return types.is_string(kind) or types.is_large_string(kind)


def _is_number(kind: Any, types: Any) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _is_list(kind: Any, types: Any) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_json(kind: Any, types: Any) -> bool:
    """Whether JSON has values of this type: texts, numbers, and lists and structs of them."""
    if types.is_struct(kind):
        return all(_is_json(field.type, types) for field in kind)
    if _is_list(kind, types):
        return _is_json(kind.value_type, types)
    return _is_text(kind, types) or types.is_null(kind) or _is_number(kind, types)
