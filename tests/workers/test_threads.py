"""Threads of one process: what they share, and what each has of its own."""

import gc
import threading

import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.workers.threads import ThreadPool


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


def with_a_generator(samples, rng=None):
    return samples


@pytest.mark.parametrize("stage", [iter, with_a_generator])
def test_a_stage_that_may_draw_from_shared_generators_is_refused(pack_shards, make_source, stage):
    source = make_source(pack_shards([4]), stages=(Harmless(), stage))
    with pytest.raises(ConfigError, match=r"^stages\[1\] may draw .*deterministic = T"):
        ThreadPool(1).start(source, Place(), Cursor())


def test_the_threads_of_a_stream_end_when_it_is_dropped(pack_shards, make_source):
    before = set(threads_left())
    stream = ThreadPool(3).start(make_source(pack_shards([9])), Place(), Cursor())
    next(stream)
    del stream
    gc.collect()
    assert set(threads_left()) <= before  # those of other tests may end meanwhile
