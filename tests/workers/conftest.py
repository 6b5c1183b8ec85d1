"""Streams of batches that end with their test, and loaders whose bytes are compared."""

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.plan.place import Cursor, Place
from tests.workers.same_bytes import COUNTS, jitter, jitter_globally


@pytest.fixture
def start(request):
    """Starts streams, which end with the test."""

    def started(pool, source):
        stream = pool.start(source, Place(), Cursor())
        request.addfinalizer(stream.close)
        return stream

    return started


@pytest.fixture(scope="module")
def make_loader(tmp_path_factory, pack_into):
    """Makes loaders of rank 1 of 2, over the same shards; 0 workers are the trainer's thread."""
    folder = tmp_path_factory.mktemp("bytes")
    urls = pack_into(folder, COUNTS)

    def make(
        num_workers=0,
        context="fork",
        sampling="shuffled",
        label=jitter_globally,
        joint=None,
        collate_fn=None,
        decode=None,
        split=None,
        **pool,
    ):
        module = ShardDataModule(
            train=SplitConfig(
                urls,
                sampling=sampling,
                reader="indexed",
                remainder="pad",
                shuffle_run=2,
                shuffle_block=8,
                **(split or {}),
            ),
            fields={"image": "png", "label": "cls"},
            decode=decode or {"image": "gray"},
            transforms={"image": jitter, "label": label},
            sample_transforms=joint,
            collate_fn=collate_fn,
            batch_size=2,
            num_workers=num_workers,
            seed=7,
            loader=LoaderConfig(
                multiprocessing_context=context, cache_dir=str(folder / "cache"), **pool
            ),
        )
        return module.loader("train", rank=1, world_size=2)

    return make
