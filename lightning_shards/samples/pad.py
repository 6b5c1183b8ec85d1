"""`PadCollate`, a `collate_fn` that pads fields of several lengths."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError, count_of
from lightning_shards.samples.collate import (
    Column,
    Sample,
    column_of,
    require_unmasked,
    values_of,
)
from lightning_shards.samples.tensors import NUMBERS, as_native, is_tensor, load_torch, tensor_of
from lightning_shards.samples.transforms import fields_of


@dataclass(frozen=True)
class PadCollate:
    """Pads some fields to one tensor for each of them, and adds their lengths.

    Give an instance to `ShardDataModule` or `SplitConfig` as `collate_fn`. The values of a padded
    field are tensors, arrays, or lists of either or of numbers, with equal numbers of dimensions;
    where one is a tensor, all become tensors. Each dimension is padded at its end to the longest
    value of the batch. `FIELD_length`, int64 of shape (batch,), is the size of dimension `dim` of
    each value before. All other fields are what they are without a `collate_fn`.

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
        to_multiple: Dimension `dim` is padded to a multiple of this number.
        dim: The dimension that lengths are of; -1 for sounds of shape (channels, samples).

    Raises:
        ConfigError: A setting cannot work, or does not go with the samples.
        SampleError: The values of a field cannot be padded.
    """

    fields: list[str]
    value: int | float | dict[str, int | float] = 0
    to_multiple: int = 1
    dim: int = 0
    takes_arrays: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

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
        """The batch of these samples: lists first, then arrays or tensors."""
        self._require_fields(samples[0])
        columns: dict[str, Column] = {}
        for name in fields_of(samples[0]):
            if name in self.fields:
                columns[name], lengths = self._padded(samples, name)
                columns[f"{name}_length"] = lengths
            else:
                columns[name] = column_of(samples, name)
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
        """A field of the batch, and the size of dimension `dim` of its values."""
        value = self.value[name] if isinstance(self.value, dict) else self.value
        parts = _parts_to_pad(samples, name, value)
        shapes = [tuple(part.shape) for part in parts]
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        if not -len(longest) <= self.dim < len(longest):
            raise ConfigError(
                f"dim={self.dim} of PadCollate is no dimension of field {name!r}, which has "
                f"{count_of(len(longest), 'dimension')}; take 0 for the first, or -1 for the last"
            )
        longest[self.dim] = -(-longest[self.dim] // self.to_multiple) * self.to_multiple
        column = _filled((len(parts), *longest), value, parts[0].dtype, name)
        for row, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            column[(row, *map(slice, shape))] = part
        return column, np.array([shape[self.dim] for shape in shapes], np.int64)


def _filled(shape: Sequence[int], value: float, dtype: Any, name: str) -> Any:
    """An array or tensor of one value, which its type must be able to hold."""
    make: Any = np.full if isinstance(dtype, np.dtype) else load_torch().full
    held: object = None
    with suppress(OverflowError, RuntimeError, TypeError, ValueError), np.errstate(all="ignore"):
        held = make((), value, dtype=dtype).item()
    is_rounded = isinstance(held, float) and isfinite(held) == isfinite(value)
    if held != value and not is_rounded:
        raise ConfigError(
            f"PadCollate pads field {name!r} with {value!r}, which {dtype} cannot hold; give "
            "another value, or make the field another type by a transform"
        )
    return make(tuple(shape), value, dtype=dtype)


def _parts_to_pad(samples: list[Sample], name: str, fill: float) -> list[Any]:
    """The values of a field, all as tensors or all as arrays, of one type and number of dimensions.

    One without a number in it, such as an empty list, has those of the others.
    """
    parts = [_as_part(sample, name) for sample in samples]
    if any(map(is_tensor, parts)):
        parts = list(map(tensor_of, parts))
    elif all(isinstance(value, list | tuple) for value in values_of(samples, name)):
        types = [part.dtype for part in parts if part.size] or [np.asarray(fill).dtype]
        parts = [part.astype(np.result_type(*types)) for part in parts]
    filled = [row for row, part in enumerate(parts) if 0 not in part.shape]
    first = filled[0] if filled else max(range(len(parts)), key=lambda row: parts[row].ndim)
    dtype, ndim = parts[first].dtype, parts[first].ndim
    for row, part in enumerate(parts):
        if 0 in part.shape:
            parts[row] = _filled(part.shape if part.ndim == ndim else (0,) * ndim, 0, dtype, name)
        elif ndim == 0 or (part.dtype, part.ndim) != (dtype, ndim):
            shown = (
                f"{tuple(parts[at].shape)} {parts[at].dtype} in sample {samples[at]['__key__']!r}"
                for at in (first, row)
            )
            raise SampleError(
                f"field {name!r} cannot be padded: {', but '.join(dict.fromkeys(shown))}; "
                "PadCollate wants one type and one number of dimensions, at least 1: leave the "
                "field out of its fields, or make its values alike by a transform"
            )
    return parts


def _as_part(sample: Sample, name: str) -> Any:
    """A value as an array, or as a tensor if it is one or a list of them."""
    value: Any = sample[name]
    is_list = type(value) in (list, tuple)
    try:
        if is_list and value and is_tensor(value[0]):
            value = load_torch().stack(tuple(value))
        if is_tensor(value):
            return value.detach()
        array: Any = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _refused(sample, name, error) from error
    if array.dtype.kind not in NUMBERS or (is_list and array.dtype == np.uint64):
        raise _refused(sample, name, "no numbers, or some that fit no int64")
    require_unmasked(value, name, sample)
    return as_native(array)


def _refused(sample: Sample, name: str, problem: object) -> SampleError:
    return SampleError(
        f"field {name!r} of sample {sample['__key__']!r} is a {type(sample[name]).__name__} that "
        f"cannot be padded: {problem}; PadCollate pads tensors, arrays, and lists of numbers whose "
        "inner lists are of one length"
    )
