"""What build/ guarantees, in the names of its tests."""

import threading

import pytest

from lightning_shards.build.loaders import make_pool
from lightning_shards.config.module import LoaderConfig
from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Place
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.messages import batch_bytes
from lightning_shards.workers.processes import ProcessPool


@pytest.fixture
def source(pack_shards, make_source):
    return make_source(pack_shards([9]), batch_size=4)


def made(source, num_workers=2, **config):
    return make_pool(LoaderConfig(**config), num_workers, source, Place())


def test_no_workers_are_the_trainers_own_thread(source):
    assert made(source, 0, pool="threads") == InlinePool()
    assert made(source, 2, pool="inline") == InlinePool()


def test_processes_know_their_threads_and_what_a_batch_takes(source):
    batch = batch_bytes(source.first_sample(Place()).batch, 4)
    pool = make_pool(LoaderConfig(threads_per_worker=2), 3, source, Place(), on_cuda=True)
    assert pool == ProcessPool(3, 2, pin_memory=True, threads=2, batch_bytes=batch)
    assert pool.describe().num_producers == 6
    assert pool.describe().workers == "3 processes of 2 threads each"


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"pool": "threads"}, 1),
        ({}, 16),  # batches of a message
        ({"threads_per_worker": 3}, 16 + 3),
    ],
)
def test_the_bytes_kept_ready_are_bounded(source, config, kept):
    of_worker = kept * batch_bytes(source.first_sample(Place()).batch, 4)
    for times, expected in ((9, 7), (7, 7), (6, 6), (1, 1), (0.5, 1)):
        allowed = int(2 * of_worker * times)
        assert (
            made(source, 2, prefetch_factor=7, prefetch_bytes=allowed, **config).prefetch_factor
            == expected
        )


def test_a_value_that_cannot_be_pickled_is_refused_by_name_unless_it_stays_in_the_process(source):
    alone = source.first_sample(Place())._replace(batch={"label": [threading.Lock()]})
    for pool in ("threads", "inline"):
        make_pool(LoaderConfig(pool=pool), 2, source, Place(), sample=alone)
    with pytest.raises(ConfigError, match=r"field 'label' cannot travel .*_thread\.lock.*threads"):
        make_pool(LoaderConfig(), 2, source, Place(), sample=alone)


@pytest.mark.parametrize("config", [{"pool": "threads"}, {"threads_per_worker": 2}])
def test_threads_that_would_share_random_numbers_are_refused(pack_shards, make_source, config):
    source = make_source(pack_shards([9]), transforms={"label": abs})
    with pytest.raises(ConfigError, match=r"the transform of 'label' may draw"):
        made(source, 2, **config)
    assert made(source, 2).threads == 1
