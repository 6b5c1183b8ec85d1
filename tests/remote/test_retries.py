"""How often and how long is tried again, by a clock that is not waited for; what closing ends."""

import random
from contextlib import contextmanager

import pytest

from lightning_shards.errors import StorageError
from lightning_shards.remote import transport as transports
from lightning_shards.remote.backend import (
    LOOK_UP,
    RangeAnswer,
    RequestFailure,
    RetryPolicy,
    TransportSettings,
)
from lightning_shards.remote.transport import RemoteTransport

MIB = 1 << 20
URL = "http://host/a.tar"


class FailingStore:
    """Gives objects of zeros, but first what `failures` say: failures, after so many bytes."""

    def __init__(self):
        self.failures, self.takes_s, self.time, self.pauses = [], 0.0, 0.0, []
        self.down_until = 0.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.time += seconds

    @contextmanager
    def get(self, url, begin, end):
        self.time += self.takes_s
        if self.time < self.down_until:
            raise RequestFailure("no")
        failure, given = self.failures.pop(0) if self.failures else (None, end - begin)
        yield RangeAnswer(begin, end, 100 * MIB, '"v"', self._chunks(failure, given))

    def _chunks(self, failure, given):
        if given:
            yield bytes(given)
        if failure:
            raise failure


@pytest.fixture
def store(monkeypatch):
    store = FailingStore()
    monkeypatch.setattr(transports, "make_client", lambda *_: store)
    return store


def read(store, failures, policy=RetryPolicy(), takes_s=0.0, gained=0, end=50 * MIB):  # noqa: B008
    store.failures, store.takes_s = [(failure, gained) for failure in failures], takes_s
    transport = RemoteTransport(TransportSettings(policy=policy), now=store.now, sleep=store.sleep)
    return transport.read(URL, 0, end)


def test_ten_tries_are_made_with_growing_pauses(store):
    with pytest.raises(StorageError, match=r"no \(try 10 of 10\)"):
        read(store, [RequestFailure("no")] * 99)
    assert len(store.pauses) == 9
    assert all(0.1 * 2**n <= pause <= 0.15 * 2**n for n, pause in enumerate(store.pauses[:8]))
    assert 12.8 <= store.pauses[8] <= 1.5 * 15


@pytest.mark.parametrize(
    ("policy", "outage_s", "takes_s"),
    [(RetryPolicy(), 40, 0), (RetryPolicy(), 40, 1), (LOOK_UP, 20, 0.2)],
)
def test_every_range_survives_an_outage(policy, outage_s, takes_s, store):
    """A store that is started again refuses at once, or breaks off what comes, for some seconds."""
    for _ in range(100):
        store.down_until = store.time + outage_s
        read(store, [], policy, takes_s, end=9)


def test_pauses_take_nothing_from_the_generator_of_transforms(store):
    random.seed(0)
    before = random.getstate()
    read(store, [RequestFailure("no")] * 9)
    assert random.getstate() == before


def test_time_counts_from_the_last_mebibyte_that_arrived(store):
    with pytest.raises(StorageError, match="try 2 of 10"):
        read(store, [RequestFailure("no")] * 99, takes_s=100, gained=MIB // 3)
    with pytest.raises(StorageError, match="try 10 of 10"):
        read(store, [RequestFailure("no")] * 99, takes_s=100, gained=MIB)


def test_an_answer_that_comes_too_slowly_is_left(store, monkeypatch):
    def drip(failure, given):
        for size in [MIB, *[MIB // 8] * 40]:
            yield bytes(size)
            store.time += 40

    monkeypatch.setattr(store, "_chunks", drip)
    with pytest.raises(StorageError, match=r"from byte \d.*comes too slowly \(try 1 of 10\)"):
        read(store, [], end=5 * MIB)
    assert store.time <= 40 + 180
