"""Loaders of all ranks against lists: whatever a plain loop does, each batch is the right one.

The machine takes steps, saves, loads, changes the world, leaves an epoch, sets it and lives through
errors, in any order. `ListModel` says what all ranks must be given.
"""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from numbered_batches import RoundRobinPool

from lightning_shards import ShardLoader
from lightning_shards.errors import SampleError, StateError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Place
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.recipe import Recipe
from lightning_shards.samples.fields import make_fields
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.index import ShardIndex
from lightning_shards.workers.inline import InlinePool

COUNTS = [4, 0, 7, 1, 5]
SAMPLES = sum(COUNTS)
SEED = 3
MACHINES = settings.default.max_examples // 2  # 50 in CI, 10,000 with the profile thorough
MOVES = 30
SAVED = st.integers(0, 99)  # which of the states that were saved
SHAPES = st.tuples(  # batch size, world size, workers, steps at which an epoch is cut
    st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.just(SAMPLES) | st.integers(1, 4)
)


def make_pool(number):
    number %= 4
    return RoundRobinPool(number) if number else InlinePool()


class Draw:
    """A random augmentation, which fails as often as it is told to."""

    failures = 0

    def __call__(self, label, rng):
        if Draw.failures:
            Draw.failures -= 1
            raise OSError("the disk has a bad day")
        return int(rng.integers(2**62))


class ListModel:
    """What all ranks must be given, as lists of positions; those from SAMPLES on are repeats."""

    def __init__(self, remainder, pinned):
        self.remainder, self.pinned = remainder, pinned
        self.epoch, self.done, self.is_loaded = 0, 0, False  # what a checkpoint of now says
        self.left = None  # steps left of the iteration that runs

    def reshape(self, batch_size, world_size, limit):
        self.places, self.world_size = batch_size * world_size, world_size
        self.length = min(len(self.steps_after(0)), limit)

    def steps_after(self, done):
        left = list(range(done, SAMPLES))
        number = (len(left) + (self.remainder != "drop") * (self.places - 1)) // self.places
        if self.remainder != "balanced" or len(left) < number * self.world_size:
            left = list(range(done, done + number * self.places))
        return cut(left, number)

    def begin(self):
        whole, self.running = self.steps_after(0), self.epoch
        steps = self.steps_after(self.done) if self.is_loaded else whole
        passed = len(whole) - len(steps)
        self.left, self.is_loaded = steps[: max(0, self.length - passed)], False
        if not self.left:  # what was loaded is the end of an epoch in this world
            self.left, self.running = whole[: self.length], self.after(self.running)

    def take(self):
        step = self.left.pop(0)
        self.epoch, self.done = self.running, min(step[-1] + 1, SAMPLES)
        if not self.left:
            self.epoch, self.done = self.after(self.running), 0
        return cut(step, self.world_size)

    def after(self, epoch):
        return 0 if self.pinned else epoch + 1

    @property
    def restored(self):
        """The epoch in which what was loaded goes on; None without it, and in an evaluation."""
        if self.pinned or not self.is_loaded:
            return None
        passed = len(self.steps_after(0)) - len(self.steps_after(self.done))
        return self.epoch + (passed >= self.length)

    def go_to(self, epoch, done, *, is_loaded):
        self.epoch, self.done, self.is_loaded, self.left = epoch, done, is_loaded, None


def cut(values, number):
    """Consecutive parts, the larger ones first."""
    return [part.tolist() for part in np.array_split(values, number)] if number else []


class LoaderMachine(RuleBasedStateMachine):
    """One plain loop on every rank, and the list model beside it."""

    def __init__(self, index, cache_dir, drawn):
        super().__init__()
        self.index, self.cache_dir = index, cache_dir
        self.drawn = drawn  # what the transform drew for (epoch, position), by any machine
        self.saved = []  # states, and what was served of their epoch until then
        self.served = []  # ids of the running epoch, without repeats

    @initialize(
        sampling=st.sampled_from(["shuffled", "resampled", "sequential"]),
        remainder=st.sampled_from(["drop", "pad", "balanced"]),
        pinned=st.booleans(),
        shape=SHAPES,
    )
    def start(self, sampling, remainder, pinned, shape):
        Draw.failures = 0
        self.source = IndexedSource(
            index=self.index,
            epochs=EpochSchedule(SAMPLES, 1, remainder, pinned=pinned),
            order=SampleOrder(self.index.counts, SEED, sampling, run=2, block=6),
            seed=SEED,
            recipes=(Recipe(make_fields({"drawn": "cls"}, {}, frozenset()), {"drawn": Draw()}),),
            cache=CacheFolder(self.cache_dir),
        )
        self.model, self.order = ListModel(remainder, pinned), self.source.order
        self.make_loaders(shape)
        self.save()

    def make_loaders(self, shape):
        batch_size, world_size, num_workers, limit = shape
        self.model.reshape(batch_size, world_size, limit)
        source = self.source.with_epochs(replace(self.source.epochs, batch_size=batch_size))
        self.loaders = [  # ranks need not have the same number of workers
            ShardLoader(source, make_pool(num_workers + rank), Place(rank, world_size))
            for rank in range(world_size)
        ]
        if limit < len(self.loaders[0]):
            self.loaders = [loader.with_epoch(limit) for loader in self.loaders]

    @rule()
    def take_a_step(self):
        self.begin()
        if not self.model.left:
            self.end()
            return
        epoch, ranks = self.model.running, self.model.take()
        del self.served[ranks[0][0] :]
        assert len(self.served) == ranks[0][0], "samples before this step were not served"
        for iterator, positions in zip(self.iterators, ranks, strict=True):
            self.check(next(iterator), epoch, positions)
        assert self.served == self.ids(epoch, 0, len(self.served))

    def begin(self):
        if self.model.left is None:
            self.model.begin()
            for loader in self.loaders:
                iter(loader)  # Lightning asks up to three times
            self.iterators = [iter(loader) for loader in self.loaders]

    def check(self, batch, epoch, positions):
        ids = self.ids(epoch, positions[0], positions[-1] + 1)
        weights = [float(position < SAMPLES) for position in positions]
        assert [tuple(each) for each in batch["__id__"].tolist()] == ids
        assert batch.get("__weight__", torch.ones(len(ids))).tolist() == weights
        for position, value in zip(positions, batch["drawn"].tolist(), strict=True):
            assert self.drawn.setdefault((epoch, position), value) == value
        self.served += ids[: int(sum(weights))]

    def ids(self, epoch, start, stop):
        return list(map(tuple, self.order.at(epoch, start, stop).tolist()))

    @rule()
    def finish_the_epoch(self):
        self.begin()
        while self.model.left:
            self.take_a_step()
        self.end()

    def end(self):
        for iterator in self.iterators:
            with pytest.raises(StopIteration):
                next(iterator)
        self.model.left = None
        if self.model.length == len(self.model.steps_after(0)):  # no limit
            lost = SAMPLES - len(self.served)
            assert lost < (self.model.places if self.model.remainder == "drop" else 1)

    @rule()
    def save(self):
        state = json.loads(json.dumps(self.loaders[0].state_dict()))
        self.saved.append((state, self.served[: state["samples"]]))

    @rule(number=SAVED, shape=SHAPES)
    def load_in_another_world(self, number, shape):
        self.make_loaders(shape)
        self.load(number)

    @rule(number=SAVED)
    def load(self, number):
        state, served = self.saved[-1 - number % len(self.saved)]
        for loader in self.loaders:
            loader.load_state_dict(state)
        self.served = list(served)
        self.model.go_to(state["epoch"], state["samples"], is_loaded=True)

    @rule(number=SAVED | st.none(), first=st.integers(0, 3), others_go_on=st.booleans())
    def fail(self, number, first, others_go_on):
        """A job that lost a rank knows no more than its last checkpoint; else all fail."""
        self.begin()
        if self.model.left:
            first %= len(self.iterators)
            iterators = [*self.iterators[first:], *self.iterators[:first]]
            failing = 1 if number is not None else len(iterators)
            Draw.failures = failing
            for iterator in iterators[:failing]:
                with pytest.raises(SampleError, match="bad day"):
                    next(iterator)
            for iterator in iterators[failing:] if others_go_on else []:
                next(iterator)
        self.model.left = None
        if number is not None:
            self.load(number)

    @rule(how=st.sampled_from(["drop", "close", "pickle"]))
    def leave_the_epoch(self, how):
        self.model.left = None
        if how == "close":
            for loader in self.loaders:
                loader.close()
        elif how == "pickle":
            self.loaders = pickle.loads(pickle.dumps(self.loaders))

    @rule(epoch=st.integers(0, 3))
    def set_the_epoch(self, epoch):
        for loader in self.loaders:
            loader.set_epoch(epoch)
        restored = self.model.restored
        if restored is not None and epoch < restored:
            for loader in self.loaders:
                with pytest.raises(StateError, match=f"goes on in epoch {restored}, .* {epoch},"):
                    next(iter(loader))
                loader.set_epoch(restored)
        elif epoch not in (self.model.epoch, restored) and not self.model.pinned:
            self.model.go_to(epoch, 0, is_loaded=False)
        self.model.left = None

    def teardown(self):
        for loader in getattr(self, "loaders", []):
            loader.close()

    @invariant()
    def all_ranks_agree_with_the_model(self):
        for loader in self.loaders:
            state = loader.state_dict()
            assert (state["epoch"], state["samples"]) == (self.model.epoch, self.model.done)
            assert len(loader) == self.model.length


@pytest.mark.slow
def test_loaders_of_all_ranks_do_what_a_list_would(pack_shards, tmp_path):
    index = ShardIndex(tuple(pack_shards(COUNTS)), np.array(COUNTS, np.int64))
    drawn = {}
    run_state_machine_as_test(
        lambda: LoaderMachine(index, str(tmp_path / "cache"), drawn),
        settings=settings(
            max_examples=MACHINES, stateful_step_count=MOVES, report_multiple_bugs=False
        ),
    )
    assert len(set(drawn.values())) == len(drawn) > SAMPLES, "samples share what they drew"
