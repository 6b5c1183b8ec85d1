"""From samples to one batch: a list or a tensor per field."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from lightning_shards.errors import SampleError
from lightning_shards.plan.digest import digest_ids

Batch: TypeAlias = dict[str, Any] | tuple[Any, ...]
"""A dict of lists (first) and tensors of shape (batch, ...), or the fields alone as a tuple."""

BatchFormat: TypeAlias = Literal["dict", "tuple"]

Sample: TypeAlias = dict[str, Any]
"""The fields of one sample, and `__key__`, `__id__`, `__url__`, `__weight__`."""


class BadSample(NamedTuple):
    """A sample that could not be made, in whose place another one stands.

    Attributes:
        shard: its shard's number.
        sample: its number in the shard.
        reason: name of the error's class.
        message: of the error, cut if it is long.
    """

    shard: int
    sample: int
    reason: str
    message: str = ""


class Made(NamedTuple):
    """A batch, and what is to be known of it wherever it goes.

    Attributes:
        batch: what the user gets.
        digest: of the ids of its samples (`plan.digest`), repeats and substitutes left out.
        bad: the samples that were planned and could not be read.
    """

    batch: Batch
    digest: int = 0
    bad: tuple[BadSample, ...] = ()


def collate(
    samples: Sequence[Sample], fields: Sequence[str], weights: Sequence[int]
) -> dict[str, Any]:
    """One batch as a dict: `__key__` and other lists first, then tensors, `__id__`, `__weight__`.

    Tensors and arrays of one shape are stacked, numbers become a tensor (int64, float64 or bool, as
    torch's own `default_collate` makes them), everything else stays a list.

    Args:
        samples: the samples, each with all of `fields`, `__key__` and `__id__`.
        fields: the names of the fields, in order.
        weights: 1 or 0 for each sample; empty for a split that has no `__weight__`.

    Raises:
        SampleError: a stage dropped a key, or the shapes of a field differ.
    """
    columns = {field: _column(samples, field) for field in fields}
    batch: dict[str, Any] = {"__key__": _values(samples, "__key__")}
    batch |= {field: column for field, column in columns.items() if isinstance(column, list)}
    batch |= {field: column for field, column in columns.items() if field not in batch}
    batch["__id__"] = torch.tensor(_values(samples, "__id__"), dtype=torch.int64)
    if weights:
        batch["__weight__"] = torch.tensor(weights, dtype=torch.float32)
    return batch


def make_batch(
    samples: Sequence[Sample],
    fields: Sequence[str],
    weights: Sequence[int],
    batch_format: BatchFormat,
    bad: Sequence[BadSample] = (),
) -> Made:
    """One batch as the user asked for it: the dict of `collate`, or its fields as a tuple."""
    batch = collate(samples, fields, weights)
    ids = batch["__id__"].numpy()
    digest = digest_ids(ids[np.array(weights, dtype=bool)] if weights else ids)
    given = batch if batch_format == "dict" else tuple(batch[field] for field in fields)
    return Made(given, digest, tuple(bad))


def _values(samples: Sequence[Sample], field: str) -> list[Any]:
    missing = [sample for sample in samples if field not in sample]
    if missing:
        raise SampleError(
            f"sample {missing[0].get('__key__')!r} has no {field!r} for its batch: a stage "
            f"or transform dropped it; keep the keys {field!r}, '__key__' and '__id__'"
        )
    return [sample[field] for sample in samples]


def _column(samples: Sequence[Sample], field: str) -> torch.Tensor | list[Any]:
    values = _values(samples, field)
    if all(isinstance(value, torch.Tensor) for value in values):
        _require_one_shape(samples, field)
        return torch.stack(values)
    if all(_is_numeric(value) for value in values):
        _require_one_shape(samples, field)
        return torch.as_tensor(np.stack(values))
    numbers = (bool, int, float, np.number, np.bool_)
    if all(isinstance(value, numbers) for value in values):
        is_float = any(isinstance(value, float | np.floating) for value in values)
        return torch.tensor(values, dtype=torch.float64 if is_float else None)
    return values


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and cast("Any", value).dtype.kind in "buif"


def _require_one_shape(samples: Sequence[Sample], field: str) -> None:
    first = samples[0]
    for sample in samples:
        if sample[field].shape != first[field].shape or sample[field].dtype != first[field].dtype:
            raise SampleError(
                f"field {field!r} does not fit into one tensor: {_describe(first, field)}, but "
                f"{_describe(sample, field)}; give the field a transform that makes them alike"
            )


def _describe(sample: Mapping[str, object], field: str) -> str:
    value = cast("Any", sample[field])
    return f"{tuple(value.shape)} {value.dtype} in sample {sample['__key__']!r}"
