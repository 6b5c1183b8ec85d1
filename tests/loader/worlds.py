"""Shards, ranks and workers of any number: what a loader's length must hold for."""

from dataclasses import dataclass
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from numbered_batches import RoundRobinPool

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig, plan_epoch

MAX_COUNT = 6
MAX_SHARDS = 6


@dataclass(frozen=True)
class World:
    """Everything that may change the batches of a job, and the workers, which may not."""

    counts: list[int]
    world_size: int
    num_workers: int
    split: dict[str, Any]

    @property
    def plan(self):
        samples = self.split.get("dataset_size") or sum(self.counts)
        return plan_epoch(
            samples, self.split["batch_size"], self.world_size, self.split["remainder"]
        )

    def loaders(self, shards_by_count):
        """One loader per rank."""
        urls = [shards_by_count[count, copy] for copy, count in enumerate(self.counts)]
        config = SplitConfig(urls, **self.split)
        cache_dir = str(shards_by_count[0, 0]) + "-cache"
        module = ShardDataModule(
            config, fields={"label": "cls"}, num_workers=0, loader=LoaderConfig(cache_dir=cache_dir)
        )
        for rank in range(self.world_size):
            loader = module.loader("train", rank=rank, world_size=self.world_size)
            if self.num_workers:
                loader.pool = RoundRobinPool(self.num_workers)
            yield loader


@st.composite
def worlds(draw, samplings=("resampled", "shuffled", "sequential")):
    """Also with fewer shards than ranks and workers."""
    split = {
        "sampling": draw(st.sampled_from(samplings)),
        "batch_size": draw(st.integers(1, 5)),
        "remainder": draw(st.sampled_from(["drop", "pad", "balanced"])),
        "reader": draw(st.sampled_from(["stream", "auto"])),
    }
    if split["sampling"] == "resampled":
        split["dataset_size"] = draw(st.none() | st.integers(1, 40))
    if split["reader"] == "stream":
        split["shuffle_buffer"] = draw(st.sampled_from([0, 3]))
    counts = draw(st.lists(st.integers(0, MAX_COUNT), min_size=1, max_size=MAX_SHARDS))
    world = World(counts, draw(st.integers(1, 5)), draw(st.integers(0, 4)), split)
    assume(sum(world.counts) and world.plan.steps)
    return world
