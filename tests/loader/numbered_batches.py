"""A loader of batches that say which they are, made without worker processes."""

import itertools
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from lightning_shards import ShardLoader
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.collate import RESERVED_KEYS, LoadedBatch
from lightning_shards.workers.inline import produce


class RoundRobinPool:
    """Workers without processes: their batches in turn, as torch's DataLoader takes them."""

    def __init__(self, num_workers=1):
        self.num_workers = num_workers
        self.streams = []

    def start(self, source, place, cursor):
        workers = [
            produce(source, place.with_worker(worker, self.num_workers), cursor)
            for worker in range(self.num_workers)
        ]
        self.streams.append(RoundRobinStream(itertools.cycle(workers), cursor))
        return self.streams[-1]

    def __getstate__(self):
        return self.__dict__ | {"streams": []}


class RoundRobinStream:
    def __init__(self, workers, cursor):
        self.workers, self.cursor, self.closed = workers, cursor, False

    def __next__(self):
        assert not self.closed
        return next(next(self.workers))

    def close(self):
        self.closed = True


@dataclass(frozen=True)
class NumberedSource:
    """Batches that say which they are: (epoch, samples trained before it)."""

    epochs: EpochSchedule
    named: dict[str, object] = field(default_factory=dict)
    reserved: tuple[str, ...] = RESERVED_KEYS

    def identity(self):
        return self.named

    def describe(self):
        return SourceDescription("numbers", "sequential", reserved=self.reserved)

    def with_epochs(self, epochs):
        return replace(self, epochs=epochs)

    def batches(self, place, cursor, arena=None):
        for turn in self.epochs.worker_epochs(place, cursor):
            for step in turn.own_steps():
                yield LoadedBatch((turn.epoch, turn.plan.trained(step)))


class FakeProgress:
    """A trainer that begins at a cursor, wants a number of steps, and has trained less."""

    def __init__(self, cursor, limit=None):
        self.cursor, self.limit = cursor, limit

    def begin(self, loader):
        return self.cursor, self.limit

    def trained(self, loader):
        return Cursor(9, 2)

    def waiting(self):
        return nullcontext()


def make_loader(pool=None, *, pinned=False, identity=None, **settings):
    """A loader of three steps of two samples an epoch."""
    epochs = EpochSchedule(7, batch_size=2, remainder="drop", pinned=pinned)
    source = NumberedSource(epochs, identity or {})
    return ShardLoader(source, pool or RoundRobinPool(), Place(), **settings)
