"""What runs in an actor: it makes the batches that a call asks for, whichever these are.

A batch is a pure function of its number in the stream, so a call may be made again at any time, in
another process on another machine. An actor remembers only where its open iterator stands; a call
for another number begins a new one.

A source travels to actors pickled once. Ray's pickler sends functions and classes of the main
script and of notebooks by value. Two things would mean something else on another machine, and are
replaced: relative paths, and files in the cache of this node.
"""

import io
import pickle
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_shards.plan.kept_order import HeldNumbers
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.generators import begin_globals
from lightning_shards.samples.tensors import on_load
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.made_files import MappedNumbers
from lightning_shards.shards.urls import is_local, scheme_of
from lightning_shards.workers.inline import produce
from lightning_shards.workers.messages import Packed, taken_apart
from lightning_shards.workers.pool import Failure
from lightning_shards.workers.ray.cluster import ray
from lightning_shards.workers.worker import failure_of, settle_torch
from lightning_shards.workers.worker_imports import tried_to_pickle


class Whereabouts(NamedTuple):
    """Where an actor runs.

    Attributes:
        node: The id of its node.
        host: The name of its machine, for messages.
    """

    node: str
    host: str


class BatchMaker:
    """One actor, the place of one worker of a rank.

    Each call brings the reference to the packed source, in a list so that Ray does not resolve it.
    As an argument of the constructor it would make Ray print an error (ray#53727).

    Args:
        place: The place of the worker.
        dtype: Name of torch's default type in the trainer; None if torch is not loaded there.
    """

    def __init__(self, place: Place, dtype: str | None) -> None:
        self._place, self._dtype = place, dtype
        self._source: Source | None = None
        self._open: dict[int, Iterator[LoadedBatch]] = {}  # one at most, by its next batch
        begin_globals(place.worker)

    def _unpacked(self, sent: Sequence[object]) -> Source:
        if self._source is None:
            source: Source = pickle.loads(ray.get(sent[0]))  # noqa: S301 the trainer packed it
            on_load(partial(settle_torch, source, self._place, self._dtype))
            self._source = source
        return self._source

    def make(self, sent: Sequence[object], cursor: Cursor, number: int, count: int) -> Packed:
        """The batches number, number + num_workers, ... of the stream, `count` of them.

        `cursor` is that of the stream's first batch.

        There are fewer if one cannot be made; then the error is packed with them.
        """
        made: list[LoadedBatch | Failure] = []
        try:
            batches = self._open.pop(number, None)
            if batches is None:
                batches = self._begun(self._unpacked(sent), cursor, number)
            for _ in range(count):
                made.append(next(batches))  # noqa: PERF401 those before an error are kept
            self._open = {number + count * self._place.num_workers: batches}
        except Exception as error:  # noqa: BLE001 raised in the trainer, in step order
            made.append(failure_of(error))
        return taken_apart(made)

    def _begun(self, source: Source, cursor: Cursor, number: int) -> Iterator[LoadedBatch]:
        """The batches from this number on, each `num_workers` after the one before it."""
        place = self._place
        is_streamed = source.describe().is_streamed
        if number == place.worker or is_streamed:  # what a worker process would run
            batches = produce(source, place, cursor)
            for _ in range(place.worker, number, place.num_workers):
                next(batches)  # what a stream draws depends on where it began
            return batches
        cursor = source.epochs.cursor_after(cursor, place.world_size, number)
        return produce(source, place.with_worker(0, place.num_workers), cursor)

    def whereabouts(self) -> Whereabouts:
        """Where this actor runs; the answer shows that it has started."""
        node = ray.get_runtime_context().get_node_id()
        return Whereabouts(node, socket.gethostname())

    def try_node(self, sent: Sequence[object], place: Place) -> Packed:
        """The first sample as it is made on this node, which is prepared for it.

        Args:
            sent: The reference to the packed source.
            place: That of the rank, for which the trainer makes its first sample.
        """
        try:
            source = self._unpacked(sent)
            source.prepare()
            made: LoadedBatch | Failure = source.first_sample(place)
        except Exception as error:  # noqa: BLE001 raised in the trainer
            made = failure_of(error)
        return taken_apart([made])


def packed_source(source: Source) -> bytes:
    """A source, pickled for actors; `pickle.loads` unpacks it.

    Raises:
        ConfigError: A callable of the user's in it cannot be pickled, which is named.
    """
    return tried_to_pickle(source, _packed, "Ray actors")


def _packed(value: object) -> bytes:
    file = io.BytesIO()
    _Packer(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _Packer(ray.cloudpickle.CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        """How an object is made again elsewhere."""
        if isinstance(obj, MappedNumbers):
            return HeldNumbers, (np.array(obj.values()),)
        if isinstance(obj, ShardIndex):
            return replace(obj, urls=tuple(map(_absolute, obj.urls))).__reduce__()
        return super().reducer_override(obj)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] Ray's


def _absolute(url: str) -> str:
    return str(Path(url).absolute()) if is_local(url) and not scheme_of(url) else url
