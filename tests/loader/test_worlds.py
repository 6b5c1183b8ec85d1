"""In any world a loader gives as many batches as it says, and each sample as planned."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numbered_batches import RoundRobinPool

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig, plan_epoch

MAX_COUNT, MAX_SHARDS = 6, 6


@pytest.fixture(scope="module")
def loaders_of(pack_into, tmp_path_factory):
    """Makes the loaders of all ranks, each with workers, of shards with so many samples."""
    folder = tmp_path_factory.mktemp("worlds")
    cells = list(itertools.product(range(MAX_COUNT + 1), range(MAX_SHARDS)))
    urls = dict(zip(cells, pack_into(folder, [count for count, _ in cells]), strict=True))

    def loaders(counts, world_size, num_workers, **split):
        shards = [urls[count, copy] for copy, count in enumerate(counts)]
        module = ShardDataModule(
            SplitConfig(shards, **split),
            fields={"label": "cls"},
            num_workers=0,
            loader=LoaderConfig(cache_dir=str(folder / "cache")),
        )
        for rank in range(world_size):
            loader = module.loader("train", rank=rank, world_size=world_size)
            if num_workers:
                loader.pool = RoundRobinPool(num_workers)
            yield loader

    return loaders


@given(
    counts=st.lists(st.integers(0, MAX_COUNT), min_size=1, max_size=MAX_SHARDS),
    world_size=st.integers(1, 5),
    num_workers=st.integers(0, 4),
    batch_size=st.integers(1, 5),
    sampling=st.sampled_from(["resampled", "shuffled", "sequential"]),
    remainder=st.sampled_from(["drop", "pad", "balanced"]),
    reader=st.sampled_from(["stream", "auto"]),
)
def test_batches_are_as_many_as_said_and_serve_each_planned_sample_once(
    loaders_of, counts, world_size, num_workers, **split
):
    """Also with fewer shards than ranks and workers."""
    assume(sum(counts))
    plan = plan_epoch(sum(counts), split["batch_size"], world_size, split["remainder"])
    assume(plan.steps)
    served, weightless = Counter(), 0
    for rank, loader in enumerate(loaders_of(counts, world_size, num_workers, **split)):
        for epoch in range(2):
            batches = list(loader)
            sizes = [len(batch["__key__"]) for batch in batches]
            assert sizes == [plan.size(step, rank) for step in range(plan.steps)]
            assert len(loader) == plan.steps
            for batch in batches:
                weights = batch.get("__weight__", torch.ones(len(batch["__id__"])))
                ids = batch["__id__"][weights == 1].tolist()
                served.update((epoch, *sample) for sample in ids)
                weightless += int((weights == 0).sum())
    assert weightless == 2 * plan.padded
    assert all(sample < counts[shard] for _, shard, sample in served)
    if split["sampling"] != "resampled":
        assert (len(served), set(served.values())) == (2 * plan.served, {1})
