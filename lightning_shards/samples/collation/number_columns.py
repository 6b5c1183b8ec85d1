"""Fields of plain numbers: one array of a batch, and why some numbers fit into none."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import SampleError
from lightning_shards.samples.loaded_torch import NUMBERS, is_tensor, torch_has

_NUMBERS = (bool, int, float, np.number, np.bool_)


def numbers_or_list(
    values: list[Any], samples: Sequence[Mapping[str, Any]] = (), field: str = ""
) -> NDArray[Any] | list[Any]:
    """An array if all values are numbers, otherwise the list itself.

    Args:
        values: Of the field.
        samples: Whose values they are, for errors.
        field: Its name, for errors.

    Raises:
        SampleError: The numbers fit no type of torch's, or some are arrays of no dimension.
    """
    if not all(isinstance(value, _NUMBERS) for value in values):
        _require_one_kind(values, samples, field)
        return values
    dtype = _number_type(values)
    try:
        column = np.array(values, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        _refuse_first(values, samples, field, dtype, error)
    is_rounded = column.dtype.kind == "f" and dtype is None  # int64 and uint64 together
    if is_rounded or not torch_has(column.dtype):
        raise SampleError(
            f"field {field!r} holds numbers that fit no type of torch's: {column.dtype}; give it a "
            "transform that makes them int64"
        )
    return column


def require_unmasked(value: Any, field: str, sample: Mapping[str, Any]) -> None:
    """Check that no number of an array is masked.

    Raises:
        SampleError: One is; a tensor has no mask.
    """
    masked: Any = sys.modules.get("numpy.ma")  # where it is not loaded, nothing is masked
    if masked is not None and isinstance(value, masked.MaskedArray) and masked.is_masked(value):
        raise SampleError(
            f"field {field!r} of sample {sample['__key__']!r} is an array with masked numbers, and "
            "a batch has no mask; fill it in a transform (`filled`), or give the mask as a field"
        )


def _number_type(values: list[Any]) -> Any:
    """The type of the array of these numbers; None for the one that numpy finds for them."""
    if any(isinstance(value, np.complexfloating) for value in values):
        return None
    if any(isinstance(value, float | np.floating) for value in values):
        return np.float64
    # by itself numpy would take uint64 for some
    return np.int64 if any(type(value) is int for value in values) else None


def _refuse_first(
    values: list[Any],
    samples: Sequence[Mapping[str, Any]],
    field: str,
    dtype: Any,
    error: Exception,
) -> NoReturn:
    for row, value in enumerate(values):
        try:
            np.array([value], dtype)
        except (TypeError, ValueError, OverflowError):
            key = samples[row]["__key__"] if samples else ""
            name = "int64" if dtype is None else np.dtype(dtype)
            shown = str(value)
            raise SampleError(
                f"field {field!r} of sample {key!r} is {shown[:40]}{'...' * (len(shown) > 40)}, "  # noqa: PLR2004
                f"and such numbers fit no {name}; decode them as 'text'"
            ) from error
    raise SampleError(f"field {field!r} holds numbers that fit no array: {error}") from error


def _require_one_kind(values: list[Any], samples: Sequence[Mapping[str, Any]], field: str) -> None:
    """Refuse numbers beside arrays or tensors without a dimension, which would be a list."""
    are_numbers = [isinstance(value, _NUMBERS) for value in values]
    if not any(are_numbers) or not samples:
        return
    if all(is_number or _has_no_dim(v) for is_number, v in zip(are_numbers, values, strict=True)):
        number, other = are_numbers.index(True), are_numbers.index(False)
        kind = "a tensor" if is_tensor(values[other]) else "an array"
        raise SampleError(
            f"field {field!r} is a {type(values[number]).__name__} in sample "
            f"{samples[number]['__key__']!r}, but {kind} of no dimension, {values[other].dtype}, "
            f"in sample {samples[other]['__key__']!r}; give the field a transform that makes them "
            "alike, as `.item()` does"
        )


def _has_no_dim(value: object) -> bool:
    if is_tensor(value):
        return not tuple(value.shape)
    array = cast("Any", value)
    return isinstance(value, np.ndarray) and array.dtype.kind in NUMBERS and not array.shape
