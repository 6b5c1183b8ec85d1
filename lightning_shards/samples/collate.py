"""Collation: one batch made from samples, with a list or an array per field.

Arrays of a batch become tensors when it is handed to the user (`with_tensors`): a
worker makes them without torch. Tensors that a transform or a decoder made stay tensors.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.plan.digest import digest_ids
from lightning_shards.samples.stage_clock import ActorTotals
from lightning_shards.samples.tensors import (
    NUMBERS,
    Arena,
    as_tensor,
    is_tensor,
    load_torch,
    new_array,
    new_tensor,
    tensor_class,
    tensor_of,
    torch_has,
)
from lightning_shards.shards.storage.protocol import FetchTotals

if TYPE_CHECKING:
    import torch


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


Batch: TypeAlias = dict[str, Any] | tuple[Any, ...]
"""A dict of lists (first) and tensors of shape (batch, ...), or the fields alone as a tuple. Until
it is handed out, arrays may stand for tensors."""

BatchFormat: TypeAlias = Literal["dict", "tuple"]

Column: TypeAlias = "NDArray[Any] | torch.Tensor | list[Any]"
"""One field of a batch."""

_PLACED_BYTES = 2**14
"""Arrays of at least this size are copied to their row of a batch one by one, others together."""

RESERVED_KEYS = ("__key__", "__id__", "__weight__", "__component__")
"""The entries of a batch that are not fields, in their order."""

Sample: TypeAlias = dict[str, Any]
"""The fields of one sample, and `__key__`, `__id__`, `__url__`, `__weight__`."""


class BadSample(NamedTuple):
    """A sample that could not be made and was replaced by another one.

    Attributes:
        shard: Number of its shard.
        sample: Its number in the shard.
        reason: Name of the error's class.
        message: Message of the error, cut if it is long.
    """

    shard: int
    sample: int
    reason: str
    message: str = ""


class LoadedBatch(NamedTuple):
    """A batch with the facts that travel with it: digest, bad samples and times.

    Attributes:
        batch: The batch that the user gets.
        digest: Digest of the ids of its samples (`plan.digest`), without repeats and substitutes.
        bad: The samples that were planned and could not be read.
        stages: Seconds that its worker spent in each stage (`stage_clock.STAGES`).
        seconds: Seconds that its worker spent on it in total.
        fetched: What its worker has fetched from afar since the batch before it; None if all of its
            shards are at hand.
        received: What came from an actor with it and its neighbours; None from other workers.
    """

    batch: Batch
    digest: int = 0
    bad: tuple[BadSample, ...] = ()
    stages: tuple[float, ...] = ()
    seconds: float = 0.0
    fetched: FetchTotals | None = None
    received: ActorTotals | None = None


class PixelLayout(NamedTuple):
    """The images of one field, all of one shape.

    Attributes:
        shape: Channels, height and width.
        is_channels_last: Whether the values of one pixel are neighbours in memory. If not, the
            planes of an image follow each other.
    """

    shape: tuple[int, int, int]
    is_channels_last: bool

    def new_column(self, count: int, arena: Arena | None = None) -> NDArray[np.uint8]:
        """Memory for so many images, in the arena if it fits: uint8 of shape (count, *shape)."""
        if not self.is_channels_last:
            return new_array((count, *self.shape), np.uint8, arena)
        channels, height, width = self.shape
        column = new_array((count, height, width, channels), np.uint8, arena)
        return column.transpose(0, 3, 1, 2)


Layouts: TypeAlias = Mapping[str, PixelLayout]
"""By field, for the fields that crops make."""


def collate(
    samples: Sequence[Sample],
    fields: Sequence[str],
    weights: Sequence[int],
    arena: Arena | None = None,
    layouts: Layouts = MappingProxyType({}),
    components: Sequence[int] = (),
) -> dict[str, Any]:
    """One batch as a dict: `__key__` and other lists first, then arrays, then other reserved ones.

    Arrays and tensors of one shape are stacked together; numbers become an array (int64, float64 or
    bool, as in torch's `default_collate`), and everything else stays a list.

    Args:
        samples: The samples, each with all of `fields`, `__key__` and `__id__`.
        fields: The names of the fields, in order.
        weights: 1 or 0 for each sample; empty for a split that has no `__weight__`.
        arena: Where arrays and tensors are made, as far as they fit.
        layouts: Of the fields that crops made, which gave arrays.
        components: The component of each sample; empty for a split that is no mixture.

    Raises:
        SampleError: A stage dropped a key, or the shapes of a field differ.
    """
    columns = {field: column_of(samples, field, arena, layouts.get(field)) for field in fields}
    ids = ids_of(samples)
    return batch_dict(values_of(samples, "__key__"), columns, ids, weights, components)


def ids_of(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """Their `__id__`: int64 of shape (samples, 2).

    Raises:
        SampleError: A stage dropped or changed that of a sample.
    """
    values = values_of(samples, "__id__")
    with suppress(TypeError, ValueError, RuntimeError, OverflowError):
        ids = np.array(values)
        if ids.shape == (len(samples), 2) and ids.dtype.kind in "biuf":
            return ids.astype(np.int64)
    raise SampleError(
        f"the '__id__' of a sample is a pair of numbers, these are {str(values)[:200]}: a stage or "
        "transform wrote over one; keep it as it came"
    )


def join_columns(
    keys: list[str],
    columns: Mapping[str, Column],
    ids: NDArray[np.int64],
    weights: Sequence[int],
    batch_format: BatchFormat,
    reserved: Collection[str] = RESERVED_KEYS,
    components: Sequence[int] | NDArray[np.int64] = (),
) -> Batch:
    """The batch of these columns as the user asked for it, a dict in the order of `collate`."""
    if batch_format == "tuple":
        return tuple(columns.values())
    return only_reserved(batch_dict(keys, columns, ids, weights, components), reserved)


def batch_dict(
    keys: list[str],
    columns: Mapping[str, Column],
    ids: NDArray[np.int64],
    weights: Sequence[int],
    components: Sequence[int] | NDArray[np.int64] = (),
) -> dict[str, Any]:
    """The dict of these columns, in the order of `collate`."""
    batch: dict[str, Any] = {"__key__": keys}
    batch |= {field: column for field, column in columns.items() if isinstance(column, list)}
    batch |= {field: column for field, column in columns.items() if field not in batch}
    batch["__id__"] = ids
    if weights:
        batch["__weight__"] = np.array(weights, np.float32)
    if len(components):
        batch["__component__"] = np.array(components, np.int64)
    return batch


def only_reserved(batch: dict[str, Any], reserved: Collection[str]) -> dict[str, Any]:
    """The batch without the reserved entries that are not among these.

    Raises:
        ConfigError: `__weight__` is to be left out, and is 0 for a sample.
    """
    left_out = set(RESERVED_KEYS).difference(reserved)
    if not left_out:
        return batch
    if "__weight__" in left_out and not np.all(batch.get("__weight__", 1)):
        raise ConfigError(
            "a batch holds a sample of `__weight__` 0, which only fills a place, and batch_keys "
            "leaves `__weight__` out; name it in batch_keys, and take it out of the batch before "
            "the model"
        )
    return {name: column for name, column in batch.items() if name not in left_out}


def make_batch(
    samples: Sequence[Sample],
    fields: Sequence[str],
    weights: Sequence[int],
    batch_format: BatchFormat,
    bad: Sequence[BadSample] = (),
    arena: Arena | None = None,
    layouts: Layouts = MappingProxyType({}),
    *,
    reserved: Collection[str] = RESERVED_KEYS,
    components: Sequence[int] = (),
) -> LoadedBatch:
    """One batch in the user's format: the dict of `collate`, or its fields as a tuple."""
    batch = collate(samples, fields, weights, arena, layouts, components)
    digest = digest_of(batch["__id__"], weights)
    if batch_format == "tuple":
        return LoadedBatch(tuple(batch[field] for field in fields), digest, tuple(bad))
    return LoadedBatch(only_reserved(batch, reserved), digest, tuple(bad))


def digest_of(ids: NDArray[np.int64], weights: Sequence[int]) -> int:
    """The digest of the ids of the samples of a batch, without those of weight 0."""
    return digest_ids(ids[np.array(weights, dtype=bool)] if weights else ids)


def values_of(samples: Sequence[Sample], field: str) -> list[Any]:
    """The value of a field in each sample.

    Raises:
        SampleError: A sample has no such field.
    """
    missing = [sample for sample in samples if field not in sample]
    if missing:
        raise SampleError(
            f"sample {missing[0].get('__key__')!r} has no {field!r} for its batch: a stage "
            f"or transform dropped it; keep the keys {field!r}, '__key__' and '__id__'"
        )
    return [sample[field] for sample in samples]


def column_of(
    samples: Sequence[Sample],
    field: str,
    arena: Arena | None = None,
    pixels: PixelLayout | None = None,
) -> Column:
    """One field of a batch, as `collate` makes it.

    Raises:
        SampleError: A sample has no such field, or the shapes differ.
    """
    values = values_of(samples, field)
    has_tensors = any(map(is_tensor, values))
    if all(is_tensor(value) or _is_numeric(value) for value in values):
        try:
            if {*map(type, values)} - {np.ndarray, tensor_class()}:  # some may be masked
                for sample in samples:
                    require_unmasked(sample[field], field, sample)
                values = [value if is_tensor(value) else np.asarray(value) for value in values]
            values = list(map(tensor_of, values)) if has_tensors else values
            _require_one_shape(samples, values, field)
            if pixels is not None:
                return np.stack(values, out=pixels.new_column(len(values), arena))
            return _stacked_tensors(values, arena) if has_tensors else _stacked(values, arena)
        except SampleError:
            raise
        except (TypeError, ValueError, RuntimeError, MemoryError) as error:
            raise SampleError(
                f"field {field!r} does not fit into a tensor: {_describe(samples[0], field)}: "
                f"{error}; give the field a transform that makes it one of numbers torch has"
            ) from error
    return numbers_or_list(values, samples, field)


def _stacked_tensors(values: list[Any], arena: Arena | None) -> "torch.Tensor":
    torch = load_torch()
    column = new_tensor((len(values), *values[0].shape), values[0].dtype, arena)
    with torch.no_grad():
        return torch.stack(values, out=column)


def _stacked(values: list[Any], arena: Arena | None) -> NDArray[Any]:
    dtype = values[0].dtype.newbyteorder("=")
    if not torch_has(dtype):
        raise TypeError(f"torch has no {dtype}")
    return np.stack(values, out=new_array((len(values), *values[0].shape), dtype, arena))


class GrowingColumn:
    """A field whose values come one by one: large arrays are copied to their rows as they come.

    If they were kept until the batch is full, they would fill fresh memory, which costs as much as
    the copy.

    Args:
        count: Number of samples of the batch.
        arena: Where the column is made, if it fits.
    """

    def __init__(self, count: int, arena: Arena | None = None) -> None:
        self._count, self._num_put, self._arena = count, 0, arena
        self._rows: NDArray[Any] | None = None
        self._kind: type = object

    def put(self, value: Any) -> Any:
        """Copy the next value to its row and return the row; or the value if it does not fit."""
        array = _large_array(value)
        if array is None:
            return value
        if self._rows is None:
            self._rows = new_array((self._count, *array.shape), array.dtype, self._arena)
            self._kind = type(value)
        like = (self._rows.shape[1:], self._rows.dtype, self._kind)
        if (array.shape, array.dtype, type(value)) != like:
            return value
        row, self._num_put = self._num_put, self._num_put + 1
        self._rows[row] = array
        return self._like_the_values(self._rows[row])

    def _like_the_values(self, array: NDArray[Any]) -> Any:
        return array if self._kind is np.ndarray else as_tensor(array)

    def finished(self, samples: Sequence[Sample], field: str) -> Column:
        """The column of these samples, whose values `put` gave; errors as in `column_of`."""
        if self._rows is not None and self._num_put == self._count:
            return self._like_the_values(self._rows)
        column = column_of(samples, field, self._arena)
        if isinstance(column, list):  # rows are copied: their memory may be an arena's
            column = [row.copy() if type(row) is np.ndarray else row for row in column]
        return column


def _large_array(value: Any) -> np.ndarray | None:
    """A large array or tensor as an array of native numbers; None for any other value."""
    array = value
    if type(value) is tensor_class():
        with suppress(TypeError, RuntimeError):  # no type of numpy's, not dense, or with gradients
            array = value.numpy()
    if type(array) is not np.ndarray or array.nbytes < _PLACED_BYTES:
        return None
    return array if torch_has(array.dtype) and array.dtype.isnative else None


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and cast("Any", value).dtype.kind in NUMBERS


def _require_one_shape(samples: Sequence[Sample], values: Sequence[Any], field: str) -> None:
    first = values[0]
    for sample, value in zip(samples, values, strict=True):
        if value.shape != first.shape or value.dtype != first.dtype:
            raise SampleError(
                f"field {field!r} does not fit into one tensor: {_describe(samples[0], field)}, "
                f"but {_describe(sample, field)}; give the field a transform that makes them alike"
                f"{_padding_remedy(first, value, field)}"
            )


def _padding_remedy(value: Any, other: Any, field: str) -> str:
    """What else helps if only the sizes of two values differ."""
    if (value.dtype, len(value.shape)) != (other.dtype, len(other.shape)):
        return ""
    return f", or pad them: collate_fn=PadCollate(fields=[{field!r}]), or a collate_fn of your own"


def _describe(sample: Mapping[str, object], field: str) -> str:
    value = cast("Any", sample[field])
    try:
        shape = str(tuple(value.shape))
    except RuntimeError:  # of a nested tensor
        shape = "several shapes of"
    return f"{shape} {value.dtype} in sample {sample['__key__']!r}"
