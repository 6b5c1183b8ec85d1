"""Ranges of remote objects: how many requests, of which version, by threads that end."""

import threading
import time

import pytest
from fault_server import Fault

from lightning_shards.errors import StorageError
from lightning_shards.remote import fetcher
from lightning_shards.remote.storage import RemoteStorage
from lightning_shards.remote.transport import RemoteTransport, TransportSettings
from lightning_shards.shards.storage.protocol import ShardReads
from tests.remote.conftest import QUICK
from tests.remote.contract import DATA, SIZE

pytestmark = pytest.mark.network


@pytest.fixture
def storage(server, monkeypatch):
    monkeypatch.setattr(fetcher, "_GAP", 0)
    server.objects["data/0.tar"] = DATA
    made = RemoteStorage(RemoteTransport(TransportSettings(policy=QUICK)), connections=5)
    yield made
    made.close_all()


@pytest.fixture
def url(server):
    return f"{server.url}/data/0.tar?X-Amz-Signature=s3cr3t-query"


def reads_of(url, ranges, stat=None):
    into = bytearray(sum(stop - start for start, stop in ranges))
    starts, stops = ([pair[end] for pair in ranges] for end in (0, 1))
    return ShardReads(url, starts, stops, stat, memoryview(into)), into


def of_every_ninth(number):
    """So many ranges of five bytes, and what they hold."""
    ranges = [(9 * each, 9 * each + 5) for each in range(number)]
    return ranges, b"".join(DATA[start:stop] for start, stop in ranges)


def fetchers():
    return {thread for thread in threading.enumerate() if thread.name == "lightning-shards-fetch"}


def wait_until_gone(threads, limit_s=1.0):
    end = time.monotonic() + limit_s
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < end, "threads go on"
        time.sleep(0.005)


def test_each_range_is_one_request_with_the_version_that_is_known(server, storage, url):
    stat = storage.stat(url)
    server.asked.clear()
    ranges, expected = of_every_ninth(20)
    reads, into = reads_of(url, [*ranges, (SIZE - 3, SIZE + 4)], stat)
    assert storage.read_ranges([reads]) == [[5] * 20 + [3]]
    assert into == expected + DATA[-3:] + bytes(4)
    assert len(server.asked) == 21
    assert {asked.headers["if-match"] for asked in server.asked} == {server.etag("data/0.tar")}


def test_threads_are_started_as_needed_and_end_with_the_storage(storage, url):
    before = fetchers()
    storage.read_ranges([reads_of(url, [(0, 1), (5, 6)])[0]])
    assert 1 <= len(fetchers() - before) <= 2
    storage.read_ranges([reads_of(url, of_every_ninth(50)[0])[0]])
    started = fetchers() - before
    assert len(started) <= 5
    assert all(thread.daemon for thread in started)
    storage.close_all()
    wait_until_gone(started)
    assert storage.read_ranges([reads_of(url, [(0, 1), (5, 6)])[0]]) == [[1, 1]]


def test_a_stalled_read_ends_when_the_storage_is_closed(server, url):
    server.objects["data/0.tar"] = DATA
    server.always = Fault("stall", 3)
    storage = RemoteStorage(RemoteTransport(), connections=2)  # which would wait for 30 s
    errors = []

    def read():
        try:
            storage.read_ranges([reads_of(url, of_every_ninth(9)[0])[0]])
        except StorageError as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    while not server.asked:
        time.sleep(0.005)
    storage.close_all()
    wait_until_gone([reader])
    assert len(errors) == 1
