"""Shards, ranks and workers of any number: what a loader's length must hold for."""

from dataclasses import dataclass

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
    batch_size: int
    sampling: str
    remainder: str
    dataset_size: int | None
    shuffle_buffer: int
    reader: str = "stream"

    @property
    def plan(self):
        samples = self.dataset_size or sum(self.counts)
        return plan_epoch(samples, self.batch_size, self.world_size, self.remainder)

    def loaders(self, shards_by_count):
        """One loader per rank."""
        config = SplitConfig(
            [shards_by_count[count, copy] for copy, count in enumerate(self.counts)],
            sampling=self.sampling,
            reader=self.reader,
            remainder=self.remainder,
            batch_size=self.batch_size,
            dataset_size=self.dataset_size,
            shuffle_buffer=self.shuffle_buffer if self.reader == "stream" else None,
        )
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
    sampling = draw(st.sampled_from(samplings))
    nominal = st.none() | st.integers(1, 40) if sampling == "resampled" else st.none()
    world = World(
        counts=draw(st.lists(st.integers(0, MAX_COUNT), min_size=1, max_size=MAX_SHARDS)),
        world_size=draw(st.integers(1, 5)),
        num_workers=draw(st.integers(0, 4)),
        batch_size=draw(st.integers(1, 5)),
        sampling=sampling,
        remainder=draw(st.sampled_from(["drop", "pad", "balanced"])),
        dataset_size=draw(nominal),
        shuffle_buffer=draw(st.sampled_from([0, 3])),
        reader=draw(st.sampled_from(["stream", "auto"])),
    )
    assume(sum(world.counts) and world.plan.steps)
    return world


FEWER_SHARDS_THAN_PLACES = [  # one shard for four ranks, each of three workers
    World([6, 0], 4, 3, 1, sampling, remainder, None, 0)
    for sampling in ("resampled", "shuffled", "sequential")
    for remainder in ("drop", "pad", "balanced")
]
