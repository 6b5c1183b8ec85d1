"""`PadCollate`, a `collate_fn` that pads fields of several lengths."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError, require_at_least
from lightning_shards.samples.collate import Column, Sample, array_of, column_of, fields_of
from lightning_shards.samples.tensors import NUMBERS, as_native, is_tensor, load_torch, tensor_of


@dataclass(frozen=True)
class PadCollate:
    """Pads some fields to one tensor for each of them, and adds their lengths.

    Give an instance to `ShardDataModule` or `SplitConfig` as `collate_fn`. The values of a padded
    field are tensors, arrays, or lists of numbers, with equal numbers of dimensions;
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
        require_at_least("to_multiple", self.to_multiple, 1)
        if isinstance(self.value, dict) and self.value.keys() != set(self.fields):
            raise ConfigError(
                f"value of PadCollate names {sorted(self.value)}, and its fields are "
                f"{sorted(self.fields)}; give a number for each of them, or one for all"
            )

    def __call__(self, samples: list[Sample]) -> dict[str, Any]:
        """The batch of these samples: lists first, then arrays or tensors."""
        names, lengths = fields_of(samples[0]), [f"{name}_length" for name in self.fields]
        if not set(self.fields).issubset(names) or set(lengths).intersection(names):
            raise ConfigError(
                f"PadCollate pads {self.fields} and adds {lengths}, and the samples have {names}; "
                "name fields of theirs, and give other names to fields that are called so"
            )
        columns: dict[str, Column] = {}
        for name in names:
            if name in self.fields:
                columns[name], columns[f"{name}_length"] = self._padded(samples, name)
            else:
                columns[name] = column_of(samples, name)
        lists = {name: column for name, column in columns.items() if isinstance(column, list)}
        return lists | columns

    def _padded(self, samples: list[Sample], name: str) -> tuple[Column, NDArray[np.int64]]:
        """A field of the batch, and the size of dimension `dim` of its values."""
        fill = self.value[name] if isinstance(self.value, dict) else self.value
        parts: list[Any] = [_as_part(sample, name) for sample in samples]
        if any(map(is_tensor, parts)):
            parts = list(map(tensor_of, parts))
        # those without a number, such as empty lists, have the type and dimensions of the others
        filled = [row for row, part in enumerate(parts) if 0 not in part.shape]
        first = parts[filled[0]] if filled else max(parts, key=lambda part: part.ndim)
        dtype, ndim = first.dtype, first.ndim
        if are_lists := all(isinstance(sample[name], list | tuple) for sample in samples):
            types: list[Any] = [parts[row].dtype for row in filled]
            dtype = np.result_type(*types) if types else np.asarray(fill).dtype
        for row in filled:
            is_alike = parts[row].ndim == ndim and (are_lists or parts[row].dtype == dtype)
            if not is_alike or not -ndim <= self.dim < ndim:
                shown = (f"{tuple(part.shape)} {part.dtype}" for part in (parts[row], first))
                raise _refused(samples[row], name, f"{' and '.join(shown)}, along dim={self.dim}")
        shapes = [tuple(part.shape) if part.ndim == ndim else (0,) * ndim for part in parts]
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        longest[self.dim] = -(-longest[self.dim] // self.to_multiple) * self.to_multiple
        column = _filled((len(parts), *longest), fill, dtype, name)
        for row in filled:
            column[(row, *map(slice, shapes[row]))] = parts[row]
        return column, np.array([shape[self.dim] for shape in shapes], np.int64)


def _filled(shape: Sequence[int], value: float, dtype: Any, name: str) -> Any:
    """An array or tensor of one value, which its type must be able to hold."""
    make: Any = np.full if isinstance(dtype, np.dtype) else load_torch().full
    held: object = None
    # numpy and torch have an error or a warning of their own for what a type cannot hold
    kinds = ArithmeticError, RuntimeError, TypeError, ValueError
    with suppress(*kinds), np.errstate(over="raise", invalid="raise"):
        held = make((), value, dtype=dtype).item()
    if held != value and not isinstance(held, float):  # a float may be rounded
        raise ConfigError(
            f"PadCollate pads field {name!r} with {value!r}, which {dtype} cannot hold; give "
            "another value, or make the field another type by a transform"
        )
    return make(tuple(shape), value, dtype=dtype)


def _as_part(sample: Sample, name: str) -> Any:
    """A value as an array, or as a tensor if it is one."""
    value: Any = sample[name]
    if is_tensor(value):
        return value.detach()
    try:
        array = array_of(sample, name)
    except ValueError as error:  # inner lists of several lengths
        raise _refused(sample, name, error) from error
    if array.dtype.kind not in NUMBERS or (isinstance(value, list) and array.dtype == np.uint64):
        raise _refused(sample, name, "no numbers, or some that fit no int64")
    return as_native(array)


def _refused(sample: Sample, name: str, problem: object) -> SampleError:
    return SampleError(
        f"field {name!r} of sample {sample['__key__']!r} is a {type(sample[name]).__name__} that "
        f"cannot be padded: {problem}; PadCollate pads tensors, arrays, and lists of numbers whose "
        "inner lists are of one length, of one type and number of dimensions: make them alike by a "
        "transform, or leave the field out of its fields"
    )
