"""Collation: one batch made from samples, by us or by a `collate_fn` of the user's.

A batch of ours has a list or an array per field. Arrays become tensors when a batch is handed to
the user (`with_tensors`): a worker makes them without torch. Tensors that a transform or a decoder
made stay tensors.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import (
    ConfigError,
    SampleError,
    ShardError,
    TransformError,
    leave_out_own_frames,
)
from lightning_shards.plan.digest import digest_ids
from lightning_shards.samples.generators import callable_name, watched
from lightning_shards.samples.tensors import (
    NUMBERS,
    Arena,
    is_tensor,
    load_torch,
    new_array,
    new_tensor,
    tensor_of,
    torch_has,
)
from lightning_shards.shards.storage.protocol import FetchTotals

if TYPE_CHECKING:
    import torch


_NUMBERS = (bool, int, float, np.integer, np.floating, np.bool_)
_SHOWN = 40  # letters of a number in an error


def numbers_or_list(
    values: list[Any], samples: Sequence[Mapping[str, Any]] = (), field: str = ""
) -> NDArray[Any] | list[Any]:
    """An array if all values are numbers, otherwise the list itself.

    Args:
        values: Of the field.
        samples: Whose values they are, for errors.
        field: Its name, for errors.

    Raises:
        SampleError: The numbers fit no type of torch's.
    """
    if not all(isinstance(value, _NUMBERS) for value in values):
        return values
    has_floats = any(isinstance(value, float | np.floating) for value in values)
    has_ints = any(type(value) is int for value in values)  # numpy would take uint64 for some
    dtype = np.float64 if has_floats else np.int64 if has_ints else None
    with suppress(OverflowError):
        column = np.array(values, dtype)
        is_rounded = column.dtype.kind == "f" and dtype is None  # int64 and uint64 together
        if torch_has(column.dtype) and not is_rounded:
            return column
    largest = max(values, key=abs)
    key = samples[values.index(largest)]["__key__"] if samples else ""
    raise SampleError(
        f"field {field!r} of sample {key!r} is {str(largest)[:_SHOWN]}, and the numbers of its "
        "batch fit no type of torch's; decode it as 'text', or make them int64 by a transform"
    )


def array_of(sample: Mapping[str, Any], field: str) -> NDArray[Any]:
    """The value of a field as an array.

    Raises:
        SampleError: A number of it is masked; a tensor has no mask.
        ValueError: It holds lists of several lengths.
    """
    value = sample[field]
    if np.ma.is_masked(value):
        raise SampleError(
            f"field {field!r} of sample {sample['__key__']!r} is an array with masked numbers, and "
            "a batch has no mask; fill it in a transform (`filled`), or give the mask as a field"
        )
    return np.asarray(value)


Batch: TypeAlias = dict[str, Any] | tuple[Any, ...]
"""A dict of lists (first) and tensors of shape (batch, ...), or the fields alone as a tuple. Until
it is handed out, arrays may stand for tensors."""

BatchFormat: TypeAlias = Literal["dict", "tuple"]

Column: TypeAlias = "NDArray[Any] | torch.Tensor | list[Any]"
"""One field of a batch."""

_RESERVED: dict[str, type[Any] | None] = {
    "__key__": None,
    "__id__": np.int64,
    "__weight__": np.float32,
    "__component__": np.int64,
}
RESERVED_KEYS = tuple(_RESERVED)
"""The entries of a batch that are not fields, in their order."""

Sample: TypeAlias = dict[str, Any]
"""The fields of one sample, and `__key__`, `__id__`, `__url__`, `__weight__`."""


def fields_of(sample: Mapping[str, Any]) -> list[str]:
    """The names of its fields, without those that begin with two underscores."""
    return [name for name in sample if not name.startswith("__")]


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
    """

    batch: Batch
    digest: int = 0
    bad: tuple[BadSample, ...] = ()
    stages: tuple[float, ...] = ()
    seconds: float = 0.0
    fetched: FetchTotals | None = None


def ids_of(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """Their `__id__`: int64 of shape (samples, 2).

    Raises:
        SampleError: A stage dropped or changed that of a sample.
    """
    values = values_of(samples, "__id__")
    try:
        return np.array(values, np.int64).reshape(len(samples), 2)
    except (TypeError, ValueError, OverflowError) as error:
        raise SampleError(
            f"the '__id__' of a sample is a pair of numbers, these are {str(values)[:200]}: a "
            "stage or transform wrote over one; keep it as it came"
        ) from error


def join_columns(
    keys: list[str],
    columns: Mapping[str, Column],
    ids: NDArray[np.int64],
    weights: Sequence[int],
    batch_format: BatchFormat,
    reserved: Collection[str] = RESERVED_KEYS,
    components: Sequence[int] | NDArray[np.int64] = (),
) -> Batch:
    """The batch of these columns as the user asked for it.

    A dict has `__key__` and other lists first, then arrays, then other reserved entries.

    Args:
        keys: Of the samples.
        columns: The fields, in order.
        ids: Of the samples, int64 of shape (samples, 2).
        weights: 1 or 0 for each sample; empty for a split that has no `__weight__`.
        batch_format: A tuple has the columns alone.
        reserved: The names of the reserved entries that the batch has.
        components: The component of each sample; empty for a split that is no mixture.

    Raises:
        ConfigError: As of `_reserved_entries`.
    """
    if batch_format == "tuple":
        return tuple(columns.values())
    lists = {field: column for field, column in columns.items() if isinstance(column, list)}
    values = dict(zip(RESERVED_KEYS, (keys, ids, weights, components), strict=True))
    return _keys_first({**lists, **columns}, _reserved_entries(values, reserved))


def _reserved_entries(values: Mapping[str, Any], reserved: Collection[str]) -> dict[str, Any]:
    """The entries of a batch that are not fields, as far as they are among `reserved`.

    Args:
        values: Of the samples, by name; empty for an entry that the batch has not.
        reserved: The names of the entries.

    Raises:
        ConfigError: `__weight__` is not, and is 0 for a sample.
    """
    if "__weight__" not in reserved and not all(values["__weight__"]):
        raise ConfigError(
            "a batch holds a sample of `__weight__` 0, which only fills a place, and batch_keys "
            "leaves `__weight__` out; name it in batch_keys, and take it out of the batch before "
            "the model"
        )
    return {
        name: values[name] if dtype is None else np.array(values[name], dtype)
        for name, dtype in _RESERVED.items()
        if name in reserved and len(values[name])
    }


def _keys_first(columns: Mapping[Any, Any], entries: Mapping[str, Any]) -> dict[Any, Any]:
    """Both in one dict: Lightning warns where it finds texts after a tensor."""
    first = {"__key__": entries["__key__"]} if "__key__" in entries else {}
    return {**first, **columns, **entries}


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
) -> Column:
    """One field of a batch.

    Arrays and tensors of one shape are stacked together; numbers become an array (int64, float64 or
    bool, as in torch's `default_collate`), and everything else stays a list.

    Raises:
        SampleError: A sample has no such field, or the shapes differ.
    """
    values = values_of(samples, field)
    if not all(is_tensor(value) or _is_numeric(value) for value in values):
        return numbers_or_list(values, samples, field)
    try:
        values = [
            value if is_tensor(value) else array_of(sample, field)
            for sample, value in zip(samples, values, strict=True)
        ]
        values = list(map(tensor_of, values)) if any(map(is_tensor, values)) else values
        _require_one_shape(samples, values, field)
        return _stacked(values, arena)
    except (TypeError, RuntimeError, MemoryError) as error:
        raise SampleError(
            f"field {field!r} does not fit into a tensor: {_describe(samples[0], field)}: "
            f"{error}; give the field a transform that makes it one of numbers torch has"
        ) from error


def _stacked(values: list[Any], arena: Arena | None) -> "NDArray[Any] | torch.Tensor":
    shape, dtype = (len(values), *values[0].shape), values[0].dtype
    if is_tensor(values[0]):
        torch = load_torch()
        with torch.no_grad():
            return torch.stack(values, out=new_tensor(shape, dtype, arena))
    if not torch_has(dtype):
        raise TypeError(f"torch has no {dtype}")
    return np.stack(values, out=new_array(shape, dtype.newbyteorder("="), arena))


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and cast("Any", value).dtype.kind in NUMBERS


def _require_one_shape(samples: Sequence[Sample], values: Sequence[Any], field: str) -> None:
    first = values[0]
    for sample, value in zip(samples, values, strict=True):
        if value.shape != first.shape or value.dtype != first.dtype:
            pad = f"collate_fn=PadCollate(fields=[{field!r}]), or a collate_fn of your own"
            are_of_one_kind = (value.dtype, value.ndim) == (first.dtype, first.ndim)
            raise SampleError(
                f"field {field!r} does not fit into one tensor: {_describe(samples[0], field)}, "
                f"but {_describe(sample, field)}; give the field a transform that makes them alike"
                + (f", or pad them: {pad}" if are_of_one_kind else "")
            )


def _describe(sample: Mapping[str, object], field: str) -> str:
    value = cast("Any", sample[field])
    return f"{tuple(value.shape)} {value.dtype} in sample {sample['__key__']!r}"


CollateFn: TypeAlias = Callable[[list[Sample]], Any]
"""From the samples of a batch to the batch."""

_NAMED = 8
"""Samples of a batch that an error names."""


@dataclass(frozen=True)
class Collation:
    """What the user says about the batches of a split.

    Attributes:
        collate_fn: Makes a batch of a list of samples; None: we make it.
        reserved: The reserved entries of a batch; `__weight__` only where the split has weights,
            `__component__` only where it is a mixture.
    """

    collate_fn: CollateFn | None = None
    reserved: tuple[str, ...] = RESERVED_KEYS

    @property
    def takes_arrays(self) -> bool:
        """Whether it is given decoded pixels as numpy arrays, as without a `collate_fn`."""
        return self.collate_fn is None or getattr(self.collate_fn, "takes_arrays", False) is True

    @property
    def callables(self) -> tuple[tuple[str, object], ...]:
        """The `collate_fn` with its name in errors, if there is one."""
        return () if self.collate_fn is None else (("collate_fn", self.collate_fn),)

    def watched(self) -> "Collation":
        """The same, with a warning if the `collate_fn` draws, unless it is `deterministic`."""
        if self.collate_fn is None or getattr(self.collate_fn, "deterministic", False) is True:
            return self
        called = f"collate_fn, which is {callable_name(self.collate_fn)},"
        return replace(self, collate_fn=watched(called, self.collate_fn, is_seeded=False))

    def begun(
        self,
        samples: Sequence[Sample],
        fields: Sequence[str],
        weights: Sequence[int],
        batch_format: BatchFormat,
        bad: Sequence[BadSample] = (),
        arena: Arena | None = None,
        *,
        components: Sequence[int] = (),
    ) -> LoadedBatch:
        """A batch, of which `finished` makes the user's: the samples themselves for a `collate_fn`.

        Args:
            samples: Each with all of `fields`, `__key__` and `__id__`.
            fields: The names of the fields, in order.
            weights: 1 or 0 for each sample; empty for a split that has no `__weight__`.
            batch_format: A dict, or the fields alone as a tuple.
            bad: The bad samples that some of these stand for.
            arena: Where arrays and tensors are made, as far as they fit.
            components: The component of each sample; empty for a split that is no mixture.

        Raises:
            SampleError: A stage dropped a key, or the shapes of a field differ.
            ConfigError: As of `join_columns`.
        """
        ids = ids_of(samples)
        if self.collate_fn is None:
            columns = {name: column_of(samples, name, arena) for name in fields}
            entries = (weights, batch_format, self.reserved, components)
            made: Any = join_columns(values_of(samples, "__key__"), columns, ids, *entries)
        else:
            made = self.given(samples, weights, components)
        digest = digest_ids(ids[np.array(weights, dtype=bool)] if weights else ids)
        return LoadedBatch(made, digest, tuple(bad))

    def given(
        self,
        samples: Sequence[Sample],
        weights: Sequence[int],
        components: Sequence[int] = (),
    ) -> list[Sample]:
        """A list of the samples as a `collate_fn` gets them: fields, then the reserved entries.

        Args:
            samples: They may have more entries that begin with two underscores.
            weights: 1 or 0 for each sample; empty for a split that has no `__weight__`.
            components: The component of each sample; empty for a split that is no mixture.

        Raises:
            SampleError: A stage dropped the key of one.
        """
        keys = values_of(samples, "__key__")
        given: list[Sample] = []
        for row, sample in enumerate(samples):
            entries: Sample = {"__key__": keys[row], "__url__": sample.get("__url__")}
            entries["__id__"] = sample["__id__"]
            entries |= {"__weight__": float(weights[row])} if weights else {}
            entries |= {"__component__": components[row]} if components else {}
            given.append({name: sample[name] for name in fields_of(sample)} | entries)
        return given

    def finished(self, loaded: LoadedBatch) -> LoadedBatch:
        """The batch as the user gets it, of what `begun` gave.

        Raises:
            TransformError: The `collate_fn` raised an error, which is the cause of this one.
            ConfigError: As of `join_columns`.
        """
        if self.collate_fn is None:
            return loaded
        samples = cast("list[Sample]", loaded.batch)
        values = {name: [each[name] for each in samples if name in each] for name in _RESERVED}
        made = self._called(samples, values["__key__"])
        if not isinstance(made, Mapping):
            return loaded._replace(batch=made)
        columns = cast("Mapping[Any, Any]", made)
        # ours, whatever a function such as torch's `default_collate` made of those of the samples
        entries = _reserved_entries(values, {*self.reserved, *columns})
        return loaded._replace(batch=_keys_first(columns, entries))

    def _called(self, samples: list[Sample], keys: list[str]) -> Any:
        function: Any = self.collate_fn
        try:
            return function(samples)
        except ShardError:
            raise
        except Exception as error:
            leave_out_own_frames(error)
            more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
            raise TransformError(
                f"collate_fn, which is {callable_name(function)}, failed on the batch of samples "
                f"{', '.join(map(repr, keys[:_NAMED]))}{more}: {type(error).__name__}: {error}; it "
                "is called with a list of samples, each a dict of fields"
            ) from error


BUILT_IN_COLLATION = Collation()
"""Without a `collate_fn`, and with all reserved entries."""
