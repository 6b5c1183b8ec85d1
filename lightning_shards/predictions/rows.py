"""What `predict_step` returned, as rows: the samples of its batch, and a column for each value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from lightning_shards.errors import ConfigError

TEXT = "text"
"""The dtype of a column of texts."""

COLUMN = "prediction"
"""Name of the column of a prediction that is a single tensor."""

_Array: TypeAlias = np.ndarray[Any, Any]

PredictedColumn: TypeAlias = _Array | list[str] | list[_Array]
"""One value for each row: an array of shape (rows, ...), texts, or arrays of several shapes."""

_NUMBERS = (bool, int, float, np.number, np.bool_)
_KEPT = (torch.float16, torch.float32, torch.float64)
_WIDEST = 8  # bytes of a number that files hold
_RESERVED = ("__key__", "__id__")


class ColumnType(NamedTuple):
    """The type of a column, the same in all batches and on all ranks.

    Attributes:
        dtype: Name of the numpy type, or `TEXT`.
        ndim: Dimensions of the value of one sample.
    """

    dtype: str
    ndim: int


ColumnTypes: TypeAlias = dict[str, ColumnType]
"""The types of all columns but `__key__` and `__id__`, by name and in order."""


@dataclass(frozen=True, slots=True)
class BatchSamples:
    """The samples of a batch.

    Attributes:
        keys: Their `__key__`.
        ids: Their `__id__`: int64, shape (samples, 2), shard number and sample number in it.
        counts: bool, shape (samples,): False for one that only fills a place (`__weight__` 0).
    """

    keys: list[str]
    ids: _Array
    counts: _Array


@dataclass(frozen=True, slots=True)
class PredictedRows:
    """The predictions for the samples of a batch that count.

    Attributes:
        keys: Their `__key__`.
        ids: Their `__id__`, as in `BatchSamples`.
        columns: The predicted values by name.
        types: The types of the columns, known even if there is no row.
    """

    keys: list[str]
    ids: _Array
    columns: dict[str, PredictedColumn]
    types: ColumnTypes

    def __len__(self) -> int:
        return len(self.keys)


def samples_of(batch: Any) -> BatchSamples:
    """The samples of a batch, by its entries `__key__`, `__id__` and, if it has one, `__weight__`.

    Raises:
        ConfigError: The batch does not say which samples it holds.
    """
    entries: dict[str, Any] = dict(batch) if _is_mapping(batch) else {}
    missing = [f"`{name}`" for name in _RESERVED if name not in entries]
    if missing:
        form = f"is a {type(batch).__name__}"
        if entries:
            form = f"has {sorted(map(str, entries))}, without {' and '.join(missing)}"
        raise ConfigError(
            f"predictions are written by `__key__` and `__id__` of their batch, and this one {form}"
            "; set batch_format='dict' in the data module, name both in its batch_keys if that is "
            "given, and let hooks and collate_fn keep these two entries"
        )
    keys: list[str] = list(entries["__key__"])
    ids: _Array = torch.as_tensor(entries["__id__"], device="cpu").numpy()
    weights = torch.as_tensor(entries.get("__weight__", [1.0] * len(keys)), device="cpu")
    counts: _Array = weights.numpy() != 0
    if ids.shape != (len(keys), 2) or counts.shape != (len(keys),):
        raise ConfigError(
            f"a batch has {len(keys)} keys, `__id__` of shape {ids.shape} and `__weight__` of shape"
            f" {counts.shape}: a hook changed one of them; keep them as they came"
        )
    return BatchSamples(keys, ids, counts)


def rows_of(prediction: Any, samples: BatchSamples) -> PredictedRows:
    """The rows of one batch; samples of weight 0 have none.

    Numbers that numpy lacks (bfloat16, float8) become float32, which holds them exactly.

    Args:
        prediction: A tensor or array of shape (samples, ...), or a dict of these and of lists with
            one entry per sample: texts, numbers, or tensors of one type, whose shapes may differ.
        samples: The samples that were predicted.

    Raises:
        ConfigError: It is anything else.
    """
    values: Any = {COLUMN: prediction} if _is_array(prediction) else prediction
    if not isinstance(values, dict) or not values:
        raise _refused("", prediction, len(samples.keys))
    columns: dict[str, PredictedColumn] = {}
    types: ColumnTypes = {}
    rows = np.flatnonzero(samples.counts)
    for name, value in cast("dict[object, Any]", values).items():
        if not isinstance(name, str) or not name or name in _RESERVED:
            raise ConfigError(
                f"predict_step returned a dict with the entry {name!r}; names are texts, and "
                "`__key__` and `__id__` are written from the batch: rename it, or leave it out"
            )
        column, types[name] = _column(name, value, len(samples.keys))
        is_array = isinstance(column, np.ndarray)
        columns[name] = (
            column[rows] if is_array else cast("PredictedColumn", [column[row] for row in rows])
        )
    keys = [samples.keys[row] for row in rows]
    return PredictedRows(keys, samples.ids[rows], columns, types)


def _is_mapping(batch: object) -> bool:
    return isinstance(batch, Mapping)


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _column(name: str, value: Any, count: int) -> tuple[PredictedColumn, ColumnType]:
    if _is_array(value):
        if value.ndim and len(value) == count:
            array = _as_array(name, value)
            return array, ColumnType(array.dtype.name, array.ndim - 1)
    elif isinstance(value, list | tuple):
        entries = cast("Sequence[Any]", value)
        if len(entries) == count:
            return _list_column(name, entries)
    raise _refused(f" for {name!r}" if name != COLUMN else "", value, count)


def _list_column(name: str, entries: Sequence[Any]) -> tuple[PredictedColumn, ColumnType]:
    if all(isinstance(entry, str) for entry in entries):
        return [str(entry) for entry in entries], ColumnType(TEXT, 0)
    if all(isinstance(entry, _NUMBERS) for entry in entries):
        array = _as_array(name, np.asarray(entries))
        return array, ColumnType(array.dtype.name, 0)
    arrays = [_as_array(name, entry) for entry in entries]
    kinds = {ColumnType(array.dtype.name, array.ndim) for array in arrays}
    if len(kinds) > 1:
        found = " and ".join(sorted(f"{kind.dtype} of {kind.ndim} dimensions" for kind in kinds))
        raise ConfigError(
            f"the entries of {name!r} that predict_step returned are {found}; return tensors of "
            "one type and one number of dimensions, an empty one as torch.zeros(0, 4) for instance"
        )
    is_even = len({array.shape for array in arrays}) == 1
    return np.stack(arrays) if is_even else arrays, kinds.pop()


def _as_array(name: str, value: Any) -> _Array:
    """A tensor, array or list of numbers as an array of native numbers of at most 8 bytes."""
    try:
        array: _Array = _of_tensor(value) if isinstance(value, torch.Tensor) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_numbers(name, error) from error
    if array.dtype.kind not in "buif" or array.dtype.itemsize > _WIDEST:
        raise _no_numbers(name, array.dtype)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _of_tensor(tensor: torch.Tensor) -> _Array:
    is_kept = not tensor.is_floating_point() or tensor.dtype in _KEPT
    return (tensor if is_kept else tensor.float()).detach().cpu().resolve_neg().numpy()


def _no_numbers(name: str, what: object) -> ConfigError:
    return ConfigError(
        f"predict_step returned values for {name!r} that no file holds ({what}): return real "
        "numbers in dense tensors, or a list with one text, number or tensor per sample"
    )


def _refused(place: str, value: Any, count: int) -> ConfigError:
    if _is_array(value):
        what = f"a tensor of shape {tuple(value.shape)}"
    elif type(value) in {list, tuple, dict}:
        what = f"a {type(value).__name__} of {len(value)} entries"
    else:
        what = "None" if value is None else f"a value of type {type(value).__name__}"
    return ConfigError(
        f"predict_step returned {what}{place} for a batch of {count} samples; ShardPredictionWriter"
        " wants a tensor with one row per sample along dimension 0, or a dict of such tensors or "
        "of lists with one entry per sample"
    )
