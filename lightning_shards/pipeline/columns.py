"""Batches made field by field: equal to those made sample by sample, and many times faster.

Per sample, a dict, a dispatch and an error handler cost more than to decode what is small. Fields
that have a transform are decoded and transformed one by one, with the randomness of their sample.
An error here, but for one of a transform, does not say which sample it is about: who gets it makes
the batch by samples.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_shards.errors import SampleError
from lightning_shards.pipeline.arrays import NUMBER_COLUMNS, npy_column
from lightning_shards.pipeline.chunk import Chunk
from lightning_shards.pipeline.clock import StageClock
from lightning_shards.pipeline.collate import (
    BatchFormat,
    Column,
    Made,
    Sample,
    as_given,
    column_of,
    join_columns,
    numbers_or_list,
)
from lightning_shards.pipeline.fields import DECODERS, Field, SampleTransforms
from lightning_shards.pipeline.open_shards import OpenShards
from lightning_shards.plan.digest import id_digests, sum_digests


def can_decode(field: Field) -> bool:
    """Whether all members of a field have one decoder."""
    return len(field.decoders()) == 1


def decode_values(field: Field, members: list[bytes]) -> list[Any]:
    """The values of a field in the samples of a batch.

    Raises:
        SampleError: one cannot be decoded; `Field.decode` tells which.
    """
    (decoder,) = field.decoders()
    try:
        return list(map(DECODERS[decoder], members))
    except Exception as error:
        raise SampleError(f"field {field.name!r} cannot be decoded: {error}") from error


def decode_column(field: Field, members: list[bytes]) -> Column:
    """One field of a batch, as `decode_values` and `collate` make it.

    Raises:
        SampleError: one cannot be decoded, or the shapes differ.
    """
    (decoder,) = field.decoders()
    decode = _COLUMNS.get(decoder)
    if decode is not None:
        with suppress(Exception):  # hostile bytes raise anything; `decode_values` tells why
            column = decode(members)
            if column is not None:
                return column
    values = decode_values(field, members)
    return column_of([{field.name: value, "__key__": ""} for value in values], field.name)


def _ints(members: list[bytes]) -> torch.Tensor:
    return torch.tensor(list(map(int, members)))


def _texts(members: list[bytes]) -> list[str]:
    return list(map(bytes.decode, members))


def _jsons(members: list[bytes]) -> Column:
    return numbers_or_list(list(map(json.loads, members)))


class ColumnBatches:
    """The batches that one worker makes from a stretch of an epoch.

    Args:
        shards: the open shards.
        fields: what is taken of each sample; `can_decode` holds for all of them.
        transforms: of this epoch.
        ids: of the samples of all batches, int64 of shape (n, 2).
        spans: the positions of each batch in the epoch.
        batch_format: a dict, or the fields in order as a tuple.
        clock: told of the time that each stage takes.
    """

    def __init__(
        self,
        shards: OpenShards,
        fields: Sequence[Field],
        transforms: SampleTransforms,
        ids: NDArray[np.int64],
        spans: Sequence[tuple[int, int]],
        batch_format: BatchFormat,
        clock: StageClock,
    ) -> None:
        self._shards, self._fields, self._transforms = shards, fields, transforms
        self._format: BatchFormat = batch_format
        self._ids, self._digests = ids, id_digests(ids)
        self._first_positions = [start for start, _ in spans]
        self._stops = [0, *accumulate(stop - start for start, stop in spans)]
        self._clock = clock
        with clock.on("open"):
            self._chunk = Chunk(shards, fields, ids, self._stops[1:])

    def batch(self, number: int, weights: Sequence[int]) -> Made:
        """One of them; `weights` are 1 or 0 for each sample, or empty where the split has none.

        Raises:
            SampleError: a sample is bad.
        """
        start, stop = self._stops[number : number + 2]
        with self._clock.on("read"):
            members = self._chunk.members(start, stop)
        keys = self._chunk.keys[start:stop]
        samples = self._samples(keys, self._ids[start:stop, 0]) if self._transforms.names else []
        columns = self._columns(samples, members, self._first_positions[number])
        ids = torch.as_tensor(self._ids[start:stop].copy())
        batch = join_columns(keys, columns, ids, weights)
        digests = self._digests[start:stop]
        planned = digests[np.array(weights, bool)] if weights else digests
        names = [field.name for field in self._fields]
        return Made(as_given(batch, names, self._format), sum_digests(planned))

    def _samples(self, keys: list[str], shards: NDArray[np.int64]) -> list[Sample]:
        """For the fields that are transformed; a transform that fails says which sample it was."""
        urls = map(self._shards.url, shards.tolist())
        return [{"__key__": key, "__url__": url} for key, url in zip(keys, urls, strict=True)]

    def _columns(
        self, samples: list[Sample], members: list[list[bytes]], position: int
    ) -> dict[str, Column]:
        pairs = list(zip(self._fields, members, strict=True))
        transformed = self._transforms.names
        columns: dict[str, Column] = {}
        with self._clock.on("decode"):
            for field, data in pairs:
                if field.name not in transformed:
                    columns[field.name] = decode_column(field, data)
                    continue
                for sample, value in zip(samples, decode_values(field, data), strict=True):
                    sample[field.name] = value
        for number, sample in enumerate(samples):
            self._transforms.apply(sample, position + number)
        with self._clock.on("collate"):
            for name in transformed:
                columns[name] = column_of(samples, name)
        return {field.name: columns[field.name] for field in self._fields}


_COLUMNS: dict[str, Callable[[list[bytes]], Column | None]] = {
    "int": _ints,
    "text": _texts,
    "json": _jsons,
    "npy": npy_column,
    **NUMBER_COLUMNS,
}
