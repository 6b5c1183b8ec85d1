"""A `collate_fn` that pads fields whose values differ in size: tokens, boxes, masks."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.collate import Column, Sample, column_of, values_of
from lightning_shards.samples.loaded_torch import is_tensor, load_torch


@dataclass(frozen=True)
class PadCollate:
    """Pads some fields to one tensor for each of them, and adds their lengths.

    Give an instance to `ShardDataModule` or `SplitConfig` as `collate_fn`. The values of a padded
    field are tensors, arrays or lists of numbers, with equal numbers of dimensions. Each dimension
    is padded at its end to the longest value of the batch. `FIELD_length`, int64 of shape (batch,),
    is the size of dimension 0 of each value before. All other fields are what they are without a
    `collate_fn`.

    =============================  ===========  ================  ============
    shapes of two values           to_multiple  shape of FIELD    FIELD_length
    =============================  ===========  ================  ============
    (3,) and (5,)                  1            (2, 5)            3, 5
    (3,) and (5,)                  8            (2, 8)            3, 5
    (3, 4) and (0, 4)              1            (2, 3, 4)         3, 0
    (1, 20, 30) and (2, 40, 10)    4            (2, 4, 40, 30)    1, 2
    =============================  ===========  ================  ============

    Lists of numbers become int64, float64 or bool, as single numbers do. Arrays and tensors keep
    their type, which must be the same for all samples. An empty list has no second dimension: where
    all samples of a batch may be empty, let a transform make an array of shape (0, 4) for instance.

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

    def __call__(self, samples: list[Sample]) -> dict[str, Any]:
        """The batch: lists first, then arrays or tensors."""
        self._require_fields(samples[0])
        columns: dict[str, Column] = {}
        for name in _field_names(samples[0]):
            if name in self.fields:
                columns[name], lengths = self._padded(samples, name)
                columns[f"{name}_length"] = lengths
            else:
                columns[name] = column_of(samples, name)
        lists = {name: column for name, column in columns.items() if isinstance(column, list)}
        return lists | columns

    def _require_fields(self, sample: Sample) -> None:
        names = _field_names(sample)
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
        parts = _parts_to_pad(samples, name)
        shapes = [tuple(part.shape) for part in parts]
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        longest[0] = -(-longest[0] // self.to_multiple) * self.to_multiple
        column = _filled((len(parts), *longest), value, parts[0].dtype, name)
        for row, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            column[(row, *map(slice, shape))] = part
        return column, np.array([shape[0] for shape in shapes], np.int64)


def _field_names(sample: Sample) -> list[str]:
    return [name for name in sample if not name.startswith("__")]


def _filled(shape: tuple[int, ...], value: float, dtype: Any, name: str) -> Any:
    """An array or tensor of one value, which its type must be able to hold."""
    is_array = not hasattr(dtype, "is_floating_point")
    make: Any = np.full if is_array else load_torch().full
    try:
        is_float = dtype.kind == "f" if is_array else dtype.is_floating_point
        if is_float or make((), value, dtype=dtype).item() == value:
            return make(shape, value, dtype=dtype)
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise _refused_value(value, dtype, name) from error
    raise _refused_value(value, dtype, name)


def _refused_value(value: float, dtype: object, name: str) -> ConfigError:
    return ConfigError(
        f"PadCollate pads field {name!r} with {value!r}, which {dtype} cannot hold; give another "
        "value, or make the field another type by a transform"
    )


def _parts_to_pad(samples: list[Sample], name: str) -> list[Any]:
    """The values of a field, all as tensors or all as arrays, of one type and number of dimensions.

    An empty list has those of the other values.
    """
    values = values_of(samples, name)
    is_empty = [isinstance(value, list | tuple) and not value for value in values]
    if all(map(is_tensor, values)):
        parts: list[Any] = [value.detach() for value in values]
    else:
        parts = [_as_array(sample, name) for sample in samples]
    known = [part for part, empty in zip(parts, is_empty, strict=True) if not empty]
    if not known:
        return parts
    dtype, ndim = known[0].dtype, len(known[0].shape)
    if all(isinstance(value, list | tuple) for value in values):
        dtype = np.result_type(*known)
        parts = [part.astype(dtype) for part in parts]
    for sample, part, empty in zip(samples, parts, is_empty, strict=True):
        if not empty and (ndim == 0 or (part.dtype, len(part.shape)) != (dtype, ndim)):
            first = next(each for each in samples if each[name] is values[is_empty.index(False)])
            raise _refused_parts(name, (first, known[0]), (sample, part))
    return [
        np.empty((0,) * ndim, dtype) if empty else part
        for part, empty in zip(parts, is_empty, strict=True)
    ]


def _as_array(sample: Sample, name: str) -> Any:
    value = sample[name]
    problem = "no numbers"
    try:
        array: Any = value.detach().numpy() if is_tensor(value) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        array, problem = None, str(error)
    if array is None or array.dtype.kind not in "buif":
        raise SampleError(
            f"field {name!r} of sample {sample['__key__']!r} is a {type(value).__name__} that "
            f"cannot be padded: {problem}; PadCollate pads tensors, arrays and lists of numbers"
        )
    return array


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
