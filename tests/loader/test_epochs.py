"""What loader guarantees, in the names of its tests."""

import pickle

import pytest
from numbered_batches import FakeProgress, RoundRobinPool, make_loader

from lightning_shards.errors import ConfigError, ShardError
from lightning_shards.plan.place import Cursor
from lightning_shards.workers.inline import InlinePool


def test_nothing_starts_before_the_first_batch_is_asked_for():
    pool = RoundRobinPool()
    iter(make_loader(pool))
    assert pool.streams == []


def test_the_stream_goes_on_over_epoch_ends():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    for _epoch in range(3):
        list(loader)
    assert [(stream.cursor, stream.closed) for stream in pool.streams] == [(Cursor(0), False)]


def test_setting_the_epoch_that_comes_anyway_keeps_the_stream():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    for epoch in range(3):
        loader.set_epoch(epoch)
        list(loader)
    assert len(pool.streams) == 1


def test_setting_another_epoch_starts_the_stream_there_and_ends_the_old_one():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    list(loader)
    loader.set_epoch(7)
    list(loader)
    assert [stream.cursor for stream in pool.streams] == [Cursor(0), Cursor(7)]
    assert pool.streams[0].closed


def test_evaluation_is_epoch_0_again_and_keeps_its_stream():
    pool = RoundRobinPool()
    loader = make_loader(pool, pinned=True)
    assert list(loader) == list(loader) == [(0, 0), (0, 2), (0, 4)]
    assert len(pool.streams) == 1


def test_two_iterations_at_a_time_are_an_error():
    loader = make_loader()
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with pytest.raises(ShardError, match=r"two iterations of one loader.*make a second loader"):
        next(first)


def test_the_workers_end_with_the_block_also_by_an_error():
    pool = RoundRobinPool()

    def loop():
        with make_loader(pool) as loader:
            next(iter(loader))
            raise ValueError("in the loop")

    with pytest.raises(ValueError, match="in the loop"):
        loop()
    assert pool.streams[0].closed


def test_lightning_ends_the_workers_by_setting_the_iterator_to_none():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    next(iter(loader))
    loader._iterator = None
    assert pool.streams[0].closed


def test_batches_are_counted_and_waiting_for_the_start_is_not_waiting_for_them():
    loader = make_loader()
    batches = iter(loader)
    next(batches)
    assert loader.times.wait_s == 0 < loader.times.start_s
    list(batches)
    assert (loader.times.batches, loader.times.samples) == (3, 6)


def test_the_trainer_says_where_an_iteration_begins():
    loader = make_loader(progress=FakeProgress(Cursor(6, 2)))
    loader.set_epoch(3)
    assert list(loader) == [(6, 2), (6, 4)]


def test_under_a_limit_the_stream_goes_on_with_the_next_epoch():
    pool, progress = RoundRobinPool(), FakeProgress(Cursor(0), 2)
    loader = make_loader(pool, progress=progress)
    list(loader)
    progress.cursor = Cursor(1)
    assert list(loader) == [(1, 0), (1, 2)]
    assert len(pool.streams) == 1


def test_another_limit_starts_the_stream_again():
    """The workers have made the batches behind the end of the old epoch ready."""
    pool, progress = RoundRobinPool(), FakeProgress(Cursor(0), 2)
    loader = make_loader(pool, progress=progress)
    list(loader)
    progress.cursor, progress.limit = Cursor(1), None
    assert [list(loader), len(pool.streams)] == [[(1, 0), (1, 2), (1, 4)], 2]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_an_epoch_is_not_multiplied_by_the_workers(num_workers):
    loader = make_loader(RoundRobinPool(num_workers)).with_epoch(2)
    assert [list(loader) for _ in range(2)] == [[(0, 0), (0, 2)], [(1, 0), (1, 2)]]


def test_an_epoch_that_the_plan_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"epoch of 4 steps.*plan of 3; give 1 to 3"):
        make_loader().with_epoch(4)


@pytest.mark.parametrize("steps", [2, 4])
def test_a_length_that_is_not_the_truth_is_refused(steps):
    with pytest.raises(ConfigError, match=rf"length of {steps} is not.* 3 steps; call with_epoch"):
        make_loader().with_length(steps)


def test_with_epoch_and_with_length_make_new_loaders():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    next(iter(loader))
    list(loader.with_epoch(2).with_length(2))
    assert len(loader) == 3
    assert not pool.streams[0].closed


def test_a_loader_with_a_length_pickles_without_its_stream():
    loader = make_loader(InlinePool(), identity={"seed": 1}).with_epoch(2).with_length(2)
    next(iter(loader))
    copied = pickle.loads(pickle.dumps(loader))
    assert (len(copied), list(copied)) == (2, [(0, 0), (0, 2)])
