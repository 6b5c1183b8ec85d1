"""Threads of one process: what they share, and what each has of its own."""

import gc
import math
import resource
import threading
import time

import pytest
from waiting import wait_for

from lightning_shards.errors import ConfigError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.readers.open_shards import FILES_PER_SOURCE
from lightning_shards.workers.inline import InlinePool
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


def test_a_trainer_that_finds_no_small_batch_ready_makes_it_itself(pack_shards, make_source):
    source = make_source(pack_shards([40]))
    expected = InlinePool().start(source, Place(), Cursor())
    stream = ThreadPool(1, prefetch_factor=1, most_batches=2).start(source, Place(), Cursor())
    slot = stream._slots[0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slot._free, "release", lambda: None)  # the thread makes one message
        for _ in range(7):
            assert next(stream).batch["__key__"] == next(expected).batch["__key__"]
    stream.close()


@pytest.mark.parametrize(
    ("threads", "away_s", "goes_on"), [(1, 0.0, False), (1, 60.0, True), (2, 0.0, True)]
)
def test_the_only_thread_goes_on_when_the_trainer_computes_for_long_enough(
    pack_shards, make_source, threads, away_s, goes_on
):
    pool = ThreadPool(threads, prefetch_factor=1, most_batches=2)
    stream = pool.start(make_source(pack_shards([40])), Place(), Cursor())
    slot = stream._slots[0]
    for _ in range(7):
        slot._given_at = time.perf_counter() - away_s
        slot.take()
    assert slot._is_away.is_set() == goes_on
    stream.close()


@pytest.mark.parametrize(("batch_s", "goes_on"), [(10.0, False), (1.0, True)])
def test_it_does_not_go_on_for_what_takes_it_as_long_as_the_trainer(
    pack_shards, make_source, batch_s, goes_on
):
    """Although its message is there, so that nobody waits."""
    source = make_source(pack_shards([40]))
    stream = ThreadPool(1, prefetch_factor=1, most_batches=2).start(source, Place(), Cursor())
    slot = stream._slots[0]
    assert wait_for(lambda: not slot._ready.empty() and not slot._making.locked(), 30)
    assert 0 < slot._batch_s < batch_s
    slot._batch_s, slot._given_at = batch_s, time.perf_counter() - 20.0
    slot._receive()
    assert slot._is_away.is_set() == goes_on
    assert slot._taken
    stream.close()


def test_a_thread_that_is_stopped_waits_for_the_batch_that_the_trainer_makes(
    pack_shards, make_source, opened_gate
):
    source = make_source(pack_shards([40]), transforms={"label": opened_gate}, batch_size=1)
    stream = ThreadPool(1, prefetch_factor=1, most_batches=2).start(source, Place(), Cursor())
    slot = stream._slots[0]
    slot._worth = math.inf
    for _ in range(7):
        slot.take()
    assert slot._is_mine
    while opened_gate.waiting.acquire(blocking=False):
        pass
    opened_gate.open.clear()
    trainer = threading.Thread(target=slot.take)
    trainer.start()
    assert opened_gate.waiting.acquire(timeout=30)
    slot.stop()
    assert slot._is_mine
    opened_gate.open.set()
    trainer.join(30)
    slot.join(30)
    assert not slot._thread.is_alive()
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
