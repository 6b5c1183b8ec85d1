"""Ranges and streams of remote objects: which requests, of which version, by threads that end."""

import threading
import time

import pytest
from fault_server import Fault

from lightning_shards.errors import IndexMismatchError, StorageError
from lightning_shards.remote import fetcher
from lightning_shards.remote import storage as remote_storage
from lightning_shards.remote.backend import RetryPolicy
from lightning_shards.remote.storage import RemoteStorage
from lightning_shards.remote.transport import RemoteTransport, TransportSettings
from lightning_shards.shards.storage.protocol import ShardReads
from lightning_shards.system.process import Cancellable
from tests.remote.conftest import QUICK
from tests.remote.contract import DATA, SIZE

pytestmark = pytest.mark.network

ENDS_WITHIN_S = 15  # a second where nothing else runs; without an end it would be 30


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
    """Several ranges of a small object, none of which are joined."""
    monkeypatch.setattr(fetcher, "_GAP", 0)
    sizes = {"_FIRST_BYTES": 1_000, "_RANGE_BYTES": 4_000, "_RANGES": 3}
    for name, size in sizes.items():
        monkeypatch.setattr(remote_storage, name, size)


@pytest.fixture
def url(server):
    server.objects["data/0.tar"] = DATA
    return f"{server.url}/data/0.tar?X-Amz-Signature=s3cr3t-query"


@pytest.fixture
def make_storage():
    """Makes a storage of small ranges, closed at the end."""
    made = []

    def make(policy=QUICK, connections=5):
        policy = policy or RetryPolicy()
        transport = RemoteTransport(TransportSettings(policy=policy))
        made.append(RemoteStorage(transport, connections))
        return made[-1]

    yield make
    for storage in made:
        storage.close_all()


@pytest.fixture
def storage(make_storage):
    return make_storage()


# --- ranges


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


def test_a_stalled_read_ends_when_the_storage_is_closed(server, make_storage, url):
    server.always = Fault("stall", 3)
    storage = make_storage(policy=None, connections=2)  # which would wait for 30 s
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


# --- streams


def ranges_asked(server):
    texts = [asked.headers["range"].removeprefix("bytes=") for asked in server.asked]
    return sorted(tuple(map(int, text.split("-"))) for text in texts)


def test_each_byte_is_fetched_once_in_ranges_that_grow(server, storage, url):
    with storage.open_stream(url) as stream:
        stream.read()
    asked = ranges_asked(server)
    assert [start for start, _ in asked] == [0, *(last + 1 for _, last in asked[:-1])]
    sizes = [last + 1 - start for start, last in asked]
    assert sizes[:4] == [1_000, 2_000, 4_000, 4_000]
    assert max(sizes) == 4_000
    assert {each.headers.get("if-match") for each in server.asked[1:]} == {
        server.etag("data/0.tar")
    }


@pytest.mark.parametrize(("connections", "most"), [(9, 3), (2, 2), (1, 1)])
def test_no_more_is_fetched_ahead_than_may_be(server, make_storage, url, connections, most):
    """What was read is 1,000 bytes; the rest waits to be read."""
    with make_storage(connections=connections).open_stream(url) as stream:
        stream.raw.read(500)
        time.sleep(0.1)
        assert len(server.asked) == 1 + most


class EnoughError(Exception):
    """What a check raises."""


def enough():
    raise EnoughError


@pytest.mark.parametrize("first", ["opened", "of ranges", "whole"])
def test_a_stalled_stream_is_called_off(server, make_storage, url, first):
    """While it is opened, while a range is waited for, and where the server knows no ranges."""
    storage = make_storage(policy=None)
    server.faults = {"opened": [], "of ranges": [None], "whole": [Fault("whole")]}[first]
    server.always = Fault("stall", 10)

    def read():
        with storage.open_stream(url) as stream:
            stream.read()

    began = time.monotonic()
    with pytest.raises(EnoughError), Cancellable(enough):
        read()
    assert time.monotonic() - began < ENDS_WITHIN_S
    server.reset()
    server.objects["data/0.tar"] = DATA
    with storage.open_stream(url) as stream:
        assert stream.read() == DATA


class TestWithoutRanges:
    """A server that sends the whole object, whatever is asked for."""

    @pytest.fixture(autouse=True)
    def without_ranges(self, server, url):
        server.always = Fault("whole")

    @pytest.mark.parametrize("has_etags", [True, False])
    def test_a_break_is_followed_by_what_is_missing(self, server, storage, url, has_etags):
        """The whole object comes again, and its beginning is passed over."""
        server.has_etags = has_etags
        server.faults = [Fault("whole"), Fault("cut", 5_000), Fault("cut_reset", 60_000)]
        server.faults += [Fault("status", 503), Fault("stall", 7)]
        with storage.open_stream(url) as stream:
            assert stream.read() == DATA
        assert len(server.asked) == 6

    @pytest.mark.parametrize("checks_if_match", [True, False])
    def test_an_object_that_is_another_after_a_break_is_refused(
        self, server, storage, url, checks_if_match
    ):
        """By its ETag; its date and its size are the same."""
        server.checks_if_match = checks_if_match
        server.faults = [Fault("whole"), Fault("cut", 5_000), Fault("replace")]
        with storage.open_stream(url) as stream:
            assert stream.read(3_000) == DATA[:3_000]
            with pytest.raises(IndexMismatchError, match="another version"):
                stream.read()

    def test_a_whole_object_above_the_limit_of_cut_ranges_is_streamed(
        self, storage, url, monkeypatch
    ):
        monkeypatch.setattr("lightning_shards.remote.http.LARGEST_WHOLE", 10_000)
        with storage.open_stream(url) as stream:
            assert stream.read() == DATA
        with pytest.raises(StorageError, match="and not with a range"):
            storage.read(url, 5, 9)
