"""Threads of one process: what they share, and what each has of its own."""

import gc
import resource
import threading

import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.open_shards import FILES_PER_SOURCE
from lightning_shards.workers.threads import ThreadPool


def take_no_rng(value):
    return value


class Harmless:
    deterministic = True

    def __call__(self, value):
        return value


class Gate:
    """A transform that waits until it is let through, and says how many wait."""

    deterministic = True

    def __init__(self):
        self.waiting, self.open = threading.Semaphore(0), threading.Event()

    def __call__(self, value):
        self.waiting.release()
        assert self.open.wait(timeout=30)
        return value


def threads_left():
    return [each for each in threading.enumerate() if each is not threading.main_thread()]


@pytest.mark.parametrize(
    ("name", "value"), [("num_workers", 0), ("prefetch_factor", 0), ("most_batches", 0)]
)
def test_numbers_below_one_are_refused(name, value):
    with pytest.raises(ConfigError, match=rf"{name} must be at least 1 for worker threads, got 0"):
        ThreadPool(**{"num_workers": 1, name: value})


def test_a_transform_that_may_draw_from_shared_generators_is_refused(pack_shards, make_source):
    source = make_source(pack_shards([4]), transforms={"label": take_no_rng})
    with pytest.raises(ConfigError, match=r"the transform of 'label' may draw .*deterministic = T"):
        ThreadPool(1).start(source, Place(), Cursor())


def test_a_stage_that_may_draw_from_shared_generators_is_refused(pack_shards, make_source):
    source = make_source(pack_shards([4]), stages=(Harmless(), iter))
    with pytest.raises(ConfigError, match=r"^stages\[1\] may draw"):
        ThreadPool(1).start(source, Place(), Cursor())


def test_a_transform_that_says_it_draws_nothing_is_run(pack_shards, make_source):
    source = make_source(pack_shards([4]), transforms={"label": Harmless()})
    stream = ThreadPool(1).start(source, Place(), Cursor())
    assert len(next(stream).batch["label"]) == 2
    stream.close()


def test_threads_work_side_by_side_and_no_further_than_their_prefetch(pack_shards, make_source):
    gate = Gate()
    source = make_source(pack_shards([40]), transforms={"label": gate}, batch_size=1)
    stream = ThreadPool(3, prefetch_factor=2).start(source, Place(), Cursor())
    for _thread in range(3):
        assert gate.waiting.acquire(timeout=30)  # all are in their first sample at once
    gate.open.set()
    for _sample in range(3):  # the second of each
        assert gate.waiting.acquire(timeout=30)
    assert not gate.waiting.acquire(timeout=0.3)  # no third one before a batch is taken
    next(stream)
    assert gate.waiting.acquire(timeout=30)
    stream.close()


@pytest.fixture
def opened_gate():
    gate = Gate()
    gate.open.set()
    return gate


@pytest.mark.parametrize(("message_s", "at_once"), [(60, 4), (0, 1)])
def test_batches_are_handed_over_together_if_they_are_made_quickly(
    pack_shards, make_source, opened_gate, monkeypatch, message_s, at_once
):
    monkeypatch.setattr("lightning_shards.workers.threads._MESSAGE_S", message_s)
    source = make_source(pack_shards([40]), transforms={"label": opened_gate}, batch_size=1)
    stream = ThreadPool(1, prefetch_factor=2, most_batches=4).start(source, Place(), Cursor())
    for _batch in range(2 * at_once):
        assert opened_gate.waiting.acquire(timeout=30)
    assert not opened_gate.waiting.acquire(timeout=0.1)  # two messages are ready
    for _batch in range(at_once):  # the first one frees the place of its message
        next(stream)
    for _batch in range(at_once):
        assert opened_gate.waiting.acquire(timeout=30)
    assert not opened_gate.waiting.acquire(timeout=0.1)
    stream.close()


def test_a_thread_ends_after_the_batch_that_it_is_making(pack_shards, make_source, monkeypatch):
    monkeypatch.setattr("lightning_shards.workers.threads._MESSAGE_S", 60)
    gate = Gate()
    source = make_source(pack_shards([40]), transforms={"label": gate}, batch_size=1)
    stream = ThreadPool(1, most_batches=16).start(source, Place(), Cursor())
    assert gate.waiting.acquire(timeout=30)
    stream._slots[0].stop()
    gate.open.set()
    stream.close()
    assert not gate.waiting.acquire(blocking=False)


def test_closing_ends_the_threads(pack_shards, make_source):
    before = set(threads_left())
    stream = ThreadPool(3).start(make_source(pack_shards([9])), Place(), Cursor())
    next(stream)
    stream.close()
    assert set(threads_left()) <= before  # those of other tests may end meanwhile
    with pytest.raises(StopIteration):
        next(stream)


def test_a_stream_that_is_dropped_ends_its_threads(pack_shards, make_source):
    before = set(threads_left())
    stream = ThreadPool(3).start(make_source(pack_shards([9])), Place(), Cursor())
    next(stream)
    del stream
    gc.collect()
    assert set(threads_left()) <= before  # those of other tests may end meanwhile


def test_threads_may_open_as_many_shards_as_processes(pack_shards, make_source):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(2 * FILES_PER_SOURCE + 1024, limits[1])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
        for _again in range(2):
            ThreadPool(2).start(make_source(pack_shards([9])), Place(), Cursor()).close()
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == wanted
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
