"""One implementation of each seam in memory, and the three of the examples."""

import sys
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path

import numpy as np
import torch

from lightning_shards import (
    Cursor,
    EpochSchedule,
    LoadedBatch,
    Order,
    PoolDescription,
    ServedSample,
    SourceDescription,
)
from lightning_shards.plan.digest import digest_ids
from lightning_shards.workers.inline import produce

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    """The module of an example, also for a worker process that unpickles what it defines."""
    if name not in sys.modules:
        spec = util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        sys.modules[name] = module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@dataclass(frozen=True)
class ListOrder(Order):
    """Ids in a list, turned by one position from epoch to epoch."""

    ids: list[tuple[int, int]]

    @property
    def samples(self):
        return len(self.ids)

    def at(self, epoch, start, stop):
        positions = range(start + epoch, stop + epoch)
        ids = [self.ids[each % len(self.ids)] for each in positions]
        return np.array(ids, dtype=np.int64).reshape(-1, 2)

    def identity(self):
        return {"sampling": "list", "ids": str(self.ids)}


@dataclass(frozen=True)
class ListSource:
    """The samples of a `ListOrder`, whose label is their number in the list."""

    epochs: EpochSchedule
    seed: int = 0
    prepared: list[bool] = field(default_factory=list, compare=False)

    @property
    def order(self):
        return ListOrder([(0, each) for each in range(self.epochs.samples)])

    def with_epochs(self, epochs):
        return replace(self, epochs=epochs)

    def identity(self):
        return {"reader": "list", "seed": self.seed}

    def describe(self):
        return SourceDescription("list", "sequential", order=self.order)

    def prepare(self):
        self.prepared.append(True)

    def first_sample(self, place):
        alone = self.with_epochs(replace(self.epochs, batch_size=1, remainder="pad"))
        return next(alone.batches(place, Cursor()))

    def batches(self, place, cursor):
        for part in self.epochs.worker_epochs(place, cursor):
            for step in part.own_steps():
                ids = self.order.at(part.epoch, *part.plan.rank_span(step, place.rank))
                weights = torch.tensor(part.weights(step) or [1] * len(ids))
                batch = {"label": torch.tensor(ids[:, 1]), "__id__": torch.tensor(ids)}
                yield LoadedBatch(batch, digest_ids(ids[weights.numpy() > 0]))

    def replay(self, place, epoch, steps, num_workers):
        plan = self.epochs.plan(place.world_size)
        spans = [plan.rank_span(step, place.rank) for step in steps]
        rows = [self.order.at(epoch, *span).tolist() for span in spans]
        return [[ServedSample(str(each), shard, each) for shard, each in row] for row in rows]


@dataclass(frozen=True)
class InTurnPool:
    """Workers that are generators of the caller's own thread."""

    num_workers: int = 2

    def describe(self):
        return PoolDescription("in turn", self.num_workers)

    def start(self, source, place, cursor):
        places = [place.with_worker(each, self.num_workers) for each in range(self.num_workers)]
        return InTurnStream([produce(source, each, cursor) for each in places])


class InTurnStream:
    def __init__(self, workers):
        self.workers = workers

    def __next__(self):
        if not self.workers:
            raise StopIteration
        worker = self.workers.pop(0)
        self.workers.append(worker)
        try:
            return next(worker)
        except BaseException:
            self.close()
            raise

    def close(self):
        for worker in self.workers:
            worker.close()
        self.workers = []
