"""In any world a loader gives as many batches as it says, and each sample as planned."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from worlds import World, worlds


@given(world=worlds())
def test_the_length_is_the_batches_delivered_in_any_world(shards_by_count, world):
    for rank, loader in enumerate(world.loaders(shards_by_count)):
        for _epoch in range(2):
            sizes = [len(batch["__key__"]) for batch in loader]
            assert len(sizes) == len(loader) == world.plan.steps
            assert sizes == [world.plan.size(step, rank) for step in range(len(sizes))]


@given(world=worlds(samplings=("shuffled", "sequential")))
def test_exact_samplings_serve_each_planned_sample_once(shards_by_count, world):
    served, weightless = Counter(), 0
    for loader in world.loaders(shards_by_count):
        for batch in loader:
            weights = batch.get("__weight__", torch.ones(len(batch["__id__"])))
            served.update(map(tuple, batch["__id__"][weights == 1].tolist()))
            weightless += int((weights == 0).sum())
    everything = {(s, i) for s, count in enumerate(world.counts) for i in range(count)}
    assert served.keys() <= everything
    assert set(served.values()) == {1}
    assert (len(served), weightless) == (world.plan.served, world.plan.padded)


@pytest.mark.parametrize("sampling", ["resampled", "shuffled", "sequential"])
def test_an_epoch_is_the_same_rolled_into_and_started_at(shards_by_count, sampling):
    """With 3 workers and 4 steps the second epoch begins with another worker."""
    split = {"batch_size": 3, "sampling": sampling, "remainder": "drop", "reader": "stream"}
    world = World([5, 0, 6, 2], 1, 3, split)
    (rolled,), (started,) = world.loaders(shards_by_count), world.loaders(shards_by_count)
    for _batch in rolled:
        pass
    started.set_epoch(1)
    assert len(rolled) % 3
    assert [b["__id__"].tolist() for b in rolled] == [b["__id__"].tolist() for b in started]
