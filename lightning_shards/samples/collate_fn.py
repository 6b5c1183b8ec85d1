"""The `collate_fn` of the user: what it is given and what it makes; `PadCollate` is one, too."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import (
    ConfigError,
    SampleError,
    ShardError,
    TransformError,
    count_of,
    leave_out_own_frames,
)
from lightning_shards.samples.collate import (
    RESERVED_KEYS,
    BadSample,
    BatchFormat,
    Column,
    Layouts,
    LoadedBatch,
    Sample,
    batch_dict,
    column_of,
    digest_of,
    ids_of,
    make_batch,
    only_reserved,
    require_unmasked,
    values_of,
)
from lightning_shards.samples.generators import WatchedCollateFn
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import (
    NUMBERS,
    Arena,
    as_tensor,
    is_tensor,
    load_torch,
    tensor_of,
    torch_has,
)
from lightning_shards.samples.transforms import fields_of

CollateFn: TypeAlias = Callable[[list[Sample]], Any]
"""From the samples of a batch to the batch."""

_NAMED = 8
"""Samples of a batch that an error names."""


@dataclass(frozen=True)
class Collation:
    """What the user says about the batches of a split.

    Attributes:
        collate_fn: Makes a batch of a list of samples; None: `samples.collate` does.
        reserved: The reserved entries of a batch; `__weight__` only where the split has weights,
            `__component__` only where it is a mixture.
        component: The component of all samples, where a source of one component of a mixture makes
            batches alone; None for any other source.
    """

    collate_fn: CollateFn | None = None
    reserved: tuple[str, ...] = RESERVED_KEYS
    component: int | None = None

    @property
    def takes_arrays(self) -> bool:
        """Whether it is given decoded pixels as numpy arrays, as without a `collate_fn`."""
        return self.collate_fn is None or getattr(self.collate_fn, "takes_arrays", False) is True

    @property
    def callables(self) -> tuple[tuple[str, object], ...]:
        """The `collate_fn` with its name in errors, if there is one."""
        return () if self.collate_fn is None else (("collate_fn", self.collate_fn),)

    def watched(self) -> "Collation":
        """The same for one batch, with a warning if the `collate_fn` draws random numbers."""
        if self.collate_fn is None or getattr(self.collate_fn, "deterministic", False) is True:
            return self
        return replace(self, collate_fn=WatchedCollateFn(self.collate_fn))

    def begun(
        self,
        samples: Sequence[Sample],
        fields: Sequence[str],
        weights: Sequence[int],
        batch_format: BatchFormat,
        bad: Sequence[BadSample] = (),
        arena: Arena | None = None,
        layouts: Layouts = MappingProxyType({}),
        *,
        components: Sequence[int] = (),
    ) -> LoadedBatch:
        """A batch, of which `finished` makes the user's: the samples themselves for a `collate_fn`.

        Raises:
            SampleError: As of `make_batch`.
            ConfigError: As of `only_reserved`.
        """
        if self.collate_fn is None:
            made = (samples, fields, weights, batch_format, bad, arena, layouts)
            return make_batch(*made, reserved=self.reserved, components=components)
        digest = digest_of(ids_of(samples), weights)
        given = self.given(samples, weights, layouts, components)
        return LoadedBatch(given, digest, tuple(bad))

    def given(
        self,
        samples: Sequence[Sample],
        weights: Sequence[int],
        layouts: Layouts,
        components: Sequence[int] = (),
    ) -> Any:
        """A list of the samples as a `collate_fn` gets them: fields, then the reserved entries.

        Args:
            samples: They may have more entries that begin with two underscores.
            weights: 1 or 0 for each sample; empty for a split that has no `__weight__`.
            layouts: Of the fields that crops made, which gave arrays.
            components: The component of each sample; empty for a split that is no mixture.

        Raises:
            SampleError: A stage dropped the key of one.
        """
        keys = values_of(samples, "__key__")
        if self.component is not None:
            components = [self.component] * len(samples)
        as_tensors = frozenset[str]() if self.takes_arrays else layouts.keys()
        given: list[Sample] = []
        for row, sample in enumerate(samples):
            fields: Sample = {
                name: as_tensor(value) if name in as_tensors and _is_array(value) else value
                for name, value in sample.items()
                if not name.startswith("__")
            }
            fields |= {"__key__": keys[row], "__url__": sample.get("__url__")}
            fields["__id__"] = sample["__id__"]
            if weights:
                fields["__weight__"] = float(weights[row])
            if components:
                fields["__component__"] = components[row]
            given.append(fields)
        return given

    def finished(self, loaded: LoadedBatch, layouts: Layouts = MappingProxyType({})) -> LoadedBatch:
        """The batch as the user gets it.

        Args:
            loaded: As `begun` gave it.
            layouts: As `begun` was given them.

        Raises:
            TransformError: The `collate_fn` raised an error, which is the cause of this one.
            ConfigError: As of `only_reserved`.
        """
        if self.collate_fn is None:
            return loaded
        samples = cast("list[Sample]", loaded.batch)
        keys = [sample["__key__"] for sample in samples]
        ids = ids_of(samples)
        weights = [sample["__weight__"] for sample in samples if "__weight__" in sample]
        components = [s["__component__"] for s in samples if "__component__" in s]
        made = self._called(samples, keys, layouts)
        if not isinstance(made, Mapping):
            return loaded._replace(batch=made)
        batch = dict(cast("Mapping[Any, Any]", made))
        entries = batch_dict(keys, {}, ids, weights, components)
        # ours, whatever a function such as torch's `default_collate` made of those of the samples
        reserved = only_reserved(entries, {*self.reserved, *batch})
        # texts behind a tensor would make Lightning warn that it cannot tell the batch size
        first = {name: reserved[name] for name in ("__key__",) if name in reserved}
        return loaded._replace(batch={**first, **batch, **reserved})

    def finished_on(self, loaded: LoadedBatch, clock: StageClock, layouts: Layouts) -> LoadedBatch:
        """What `finished` gives, its time told to the clock; an error of it is of no sample."""
        with clock.on("collate"):
            loaded = self.finished(loaded, layouts)
        stages = zip(loaded.stages, clock.take(), strict=True)
        return loaded._replace(stages=tuple(before + since for before, since in stages))

    def _called(self, samples: list[Sample], keys: list[str], layouts: Layouts) -> Any:
        function: Any = self.collate_fn
        try:
            if getattr(function, "takes_layouts", False) is True:  # `PadCollate`
                return function(samples, layouts)
            return function(samples)
        except ShardError:
            raise
        except Exception as error:
            leave_out_own_frames(error)
            name = getattr(function, "__name__", type(function).__name__)
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            raise TransformError(
                f"collate_fn, which is {name}, failed on the batch of samples "
                f"{', '.join(map(repr, keys[:_NAMED]))}{more}: {type(error).__name__}: {error}; it "
                "is called with a list of samples, each a dict of fields"
            ) from error


BUILT_IN_COLLATION = Collation()
"""Without a `collate_fn`, and with all reserved entries."""


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


_MOST_DIMS = 64
"""The most dimensions that an array has."""


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
