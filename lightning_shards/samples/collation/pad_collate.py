"""A `collate_fn` that pads fields whose values differ in size: tokens, boxes, masks."""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.collate import Column, Layouts, Sample, column_of, values_of
from lightning_shards.samples.collation.number_columns import require_unmasked
from lightning_shards.samples.loaded_torch import (
    NUMBERS,
    is_tensor,
    load_torch,
    tensor_of,
    torch_has,
)
from lightning_shards.samples.sample_transforms import fields_of

_MOST_DIMS = 64
"""The most dimensions that an array has."""


@dataclass(frozen=True)
class PadCollate:
    """Pads some fields to one tensor for each of them, and adds their lengths.

    Give an instance to `ShardDataModule` or `SplitConfig` as `collate_fn`. The values of a padded
    field are tensors, arrays, or lists of either or of numbers, with equal numbers of dimensions;
    where one is a tensor, all become tensors. Each dimension is padded at its end to the longest
    value of the batch. `FIELD_length`, int64 of shape (batch,), is the size of dimension 0 of each
    value before. All other fields are what they are without a `collate_fn`.

    =============================  ===========  ================  ============
    shapes of two values           to_multiple  shape of FIELD    FIELD_length
    =============================  ===========  ================  ============
    (3,) and (5,)                  1            (2, 5)            3, 5
    (3,) and (5,)                  8            (2, 8)            3, 5
    (3, 4) and (0, 4)              1            (2, 3, 4)         3, 0
    (1, 20, 30) and (2, 40, 10)    4            (2, 4, 40, 30)    1, 2
    =============================  ===========  ================  ============

    Lists of numbers become int64, float64 or bool, as single numbers do; where all lists of a batch
    are empty, the type is that of `value`: give lists of floats a float, as in 0.0. Arrays and
    tensors keep their type, which must be the same for all samples. An empty list, or an array of
    shape (0,), has no second dimension: where all samples of a batch may be empty, let a transform
    make an array of shape (0, 4) for instance.

    Args:
        fields: The fields to pad.
        value: What fills the places behind the end; or a number for each of the fields.
        to_multiple: Dimension 0 is padded to a multiple of this number.

    Raises:
        ConfigError: A setting cannot work, or does not go with the samples.
        SampleError: The values of a field cannot be padded.
    """

    fields: list[str]
    value: int | float | dict[str, int | float] = 0
    to_multiple: int = 1
    takes_arrays: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True
    takes_layouts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse settings that cannot work whatever the samples hold."""
        if isinstance(self.fields, str) or not self.fields:
            raise ConfigError(f"PadCollate pads a list of fields, got {self.fields!r}; name some")
        if type(self.to_multiple) is not int or self.to_multiple < 1:
            raise ConfigError(
                f"to_multiple of PadCollate must be a whole number of at least 1, got "
                f"{self.to_multiple!r}"
            )
        if isinstance(self.value, dict) and self.value.keys() != set(self.fields):
            raise ConfigError(
                f"value of PadCollate names {sorted(self.value)}, and its fields are "
                f"{sorted(self.fields)}; give a number for each of them, or one for all"
            )

    def __call__(
        self, samples: list[Sample], layouts: Layouts = MappingProxyType({})
    ) -> dict[str, Any]:
        """The batch: lists first, then arrays or tensors.

        Args:
            samples: Of the batch.
            layouts: How the pixels of crops lie in memory, by field.
        """
        self._require_fields(samples[0])
        columns: dict[str, Column] = {}
        for name in fields_of(samples[0]):
            if name in self.fields:
                columns[name], lengths = self._padded(samples, name)
                columns[f"{name}_length"] = lengths
            else:
                columns[name] = column_of(samples, name, pixels=layouts.get(name))
        lists = {name: column for name, column in columns.items() if isinstance(column, list)}
        return lists | columns

    def _require_fields(self, sample: Sample) -> None:
        names = fields_of(sample)
        missing = sorted(set(self.fields).difference(names))
        if missing:
            raise ConfigError(
                f"PadCollate names the fields {missing}, and the samples have {names}; name fields "
                "of theirs"
            )
        taken = sorted(f"{name}_length" for name in self.fields if f"{name}_length" in names)
        if taken:
            raise ConfigError(
                f"PadCollate adds {taken}, which the samples have already; give these fields other "
                "names"
            )

    def _padded(self, samples: list[Sample], name: str) -> tuple[Column, NDArray[np.int64]]:
        """A field of the batch, and the size of dimension 0 of its values."""
        value = self.value[name] if isinstance(self.value, dict) else self.value
        parts = _parts_to_pad(samples, name, value)
        shapes = [tuple(part.shape) for part in parts]
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        longest[0] = -(-longest[0] // self.to_multiple) * self.to_multiple
        column = _filled((len(parts), *longest), value, parts[0].dtype, name)
        for row, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            column[(row, *map(slice, shape))] = part
        return column, np.array([shape[0] for shape in shapes], np.int64)


def _filled(shape: tuple[int, ...], value: float, dtype: Any, name: str) -> Any:
    """An array or tensor of one value, which its type must be able to hold."""
    is_array = not hasattr(dtype, "is_floating_point")
    make: Any = np.full if is_array else load_torch().full
    try:
        is_float = dtype.kind == "f" if is_array else dtype.is_floating_point
        with np.errstate(over="ignore", invalid="ignore"):
            held = make((), value, dtype=dtype).item()
        if held == value or (is_float and math.isfinite(held) == math.isfinite(value)):
            return make(shape, value, dtype=dtype)
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise _refused_value(value, dtype, name) from error
    raise _refused_value(value, dtype, name)


def _refused_value(value: float, dtype: object, name: str) -> ConfigError:
    return ConfigError(
        f"PadCollate pads field {name!r} with {value!r}, which {dtype} cannot hold; give another "
        "value, or make the field another type by a transform"
    )


def _parts_to_pad(samples: list[Sample], name: str, fill: float) -> list[Any]:
    """The values of a field, all as tensors or all as arrays, of one type and number of dimensions.

    A list without a number in it has those of the other values, and so has an array or tensor of
    shape (0,) of their type.
    """
    values = values_of(samples, name)
    are_lists = [isinstance(value, list | tuple) for value in values]
    if any(map(_is_of_tensors, values)):
        parts = [_as_tensor(sample, name) for sample in samples]
    else:
        parts = [_as_array(sample, name) for sample in samples]
        if all(are_lists):
            dtype = _type_of_lists(samples, name, parts, fill)
            parts = [part.astype(dtype) for part in parts]
    is_empty = [
        0 in part.shape if is_list else tuple(part.shape) == (0,)
        for is_list, part in zip(are_lists, parts, strict=True)
    ]
    dims = [len(part.shape) for part in parts]
    first = dims.index(max(dims)) if all(is_empty) else is_empty.index(False)
    dtype, ndim = parts[first].dtype, dims[first]
    for row, (sample, part) in enumerate(zip(samples, parts, strict=True)):
        if is_empty[row] and (are_lists[row] or part.dtype == dtype):
            sizes = tuple(part.shape) if dims[row] == ndim else (0,) * ndim
            parts[row] = _filled(sizes, 0, dtype, name)
        elif ndim == 0 or (part.dtype, dims[row]) != (dtype, ndim):
            raise _refused_parts(name, (samples[first], parts[first]), (sample, part))
    return parts


def _is_of_tensors(value: Any) -> bool:
    """Whether a value is a tensor, or lists of them."""
    leaf = value
    for _level in range(_MOST_DIMS):  # a list may hold itself
        if type(leaf) not in (list, tuple) or not leaf:
            break
        leaf = leaf[0]
    return is_tensor(leaf)


def _as_tensor(sample: Sample, name: str) -> Any:
    """The value as a tensor among others: lists of tensors are stacked."""
    value = sample[name]
    if not _is_of_tensors(value):
        return tensor_of(_as_array(sample, name))
    try:
        tensor = _stacked(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _refused_value_of(sample, name, str(error)) from error
    if tensor.layout != load_torch().strided:
        raise _refused_value_of(sample, name, "it is sparse")
    return tensor


def _stacked(value: Any) -> Any:
    is_list = isinstance(value, list | tuple)
    return load_torch().stack(list(map(_stacked, cast("list[Any]", value)))) if is_list else value


def _as_array(sample: Sample, name: str) -> NDArray[Any]:
    value = sample[name]
    try:
        array: Any = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = "its lists differ in length" if "inhomogeneous" in str(error) else str(error)
        raise _refused_value_of(sample, name, problem) from error
    require_unmasked(value, name, sample)
    if array.dtype.kind == "O":
        raise _refused_value_of(sample, name, "no numbers, or some that fit no int64")
    if array.dtype.kind not in NUMBERS:
        raise _refused_value_of(sample, name, "no numbers")
    if not torch_has(array.dtype) and not isinstance(value, list | tuple):
        raise _refused_value_of(sample, name, f"torch has no {array.dtype}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _type_of_lists(samples: list[Sample], name: str, arrays: list[Any], fill: float) -> Any:
    """The type of the array of these lists: int64, float64 or bool, as of single numbers.

    Where all of them are empty it is that of `fill`; numpy by itself would take float64 for them.
    """
    for sample, array in zip(samples, arrays, strict=True):
        # numpy takes uint64 for whole numbers from 2**63 on, and beside smaller ones float64
        floats = array[np.isfinite(array)] if array.dtype.kind == "f" else np.zeros(0)
        if array.dtype == np.uint64 or (abs(floats) >= 2**63).any():
            raise _refused_value_of(sample, name, "some numbers fit no int64, give an array")
    types = [array.dtype for array in arrays if array.size]
    of_fill = {"b": np.bool_, "f": np.float64}.get(np.asarray(fill).dtype.kind, np.int64)
    return np.result_type(*types) if types else of_fill


def _refused_value_of(sample: Sample, name: str, problem: str) -> SampleError:
    value = sample[name]
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return SampleError(
        f"field {name!r} of sample {sample['__key__']!r} is a {type(value).__name__}{shape} that "
        f"cannot be padded: {problem}; PadCollate pads tensors, arrays and lists of numbers"
    )


def _refused_parts(name: str, first: tuple[Sample, Any], other: tuple[Sample, Any]) -> SampleError:
    """The error about a value that is no sequence, or unlike the first one of the batch."""
    shown = [
        f"{tuple(part.shape)} {part.dtype} in sample {sample['__key__']!r}"
        for sample, part in (first, other)
    ]
    return SampleError(
        f"field {name!r} cannot be padded: {', but '.join(dict.fromkeys(shown))}; PadCollate wants "
        "one type and one number of dimensions, at least 1: leave the field out of its fields, or "
        "make its values alike by a transform"
    )
