"""Ranges and streams of remote objects: which requests, of which version, by threads that end."""

import threading
import time

import pytest
from fault_server import Fault
from waiting import wait_for

from lightning_shards.errors import IndexMismatchError, StorageError
from lightning_shards.readers import open_shards
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.remote import storage as remote_storage
from lightning_shards.remote.backend import RetryPolicy, TransportSettings
from lightning_shards.remote.storage import RemoteStorage
from lightning_shards.remote.transport import RemoteTransport, RequestThreads
from lightning_shards.shards.storage.protocol import ShardReads
from lightning_shards.system.process import FETCH_THREAD, Cancellable
from tests.remote.conftest import QUICK
from tests.remote.published import DATA, module

pytestmark = pytest.mark.network

ENDS_WITHIN_S = 15  # a second where nothing else runs; without an end it would be 30


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
    """Several ranges of a small object, none of which are joined."""
    sizes = {"_GAP": 0, "_FIRST_BYTES": 1_000, "_RANGE_BYTES": 4_000, "_RANGES": 3}
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
    return {thread for thread in threading.enumerate() if thread.name == FETCH_THREAD}


def test_each_range_is_one_request_with_the_version_that_is_known(server, storage, url):
    stat = storage.stat(url)
    server.asked.clear()
    ranges, expected = of_every_ninth(20)
    reads, into = reads_of(url, [*ranges, (len(DATA) - 3, len(DATA) + 4)], stat)
    assert storage.read_ranges([reads]) == [[5] * 20 + [3]]
    assert into == expected + DATA[-3:] + bytes(4)
    assert len(server.asked) == 21


def test_threads_are_started_as_needed_and_end_with_the_storage(make_storage, url):
    before, storage = fetchers(), make_storage()
    storage.read_ranges([reads_of(url, [(0, 1), (5, 6)])[0]])
    assert 1 <= len(fetchers() - before) <= 2
    storage.read_ranges([reads_of(url, of_every_ninth(50)[0])[0]])
    started = fetchers() - before
    assert len(started) <= 5
    assert all(thread.daemon for thread in started)
    storage.close_all()
    assert wait_for(lambda: not any(thread.is_alive() for thread in started), 1)
    for closed in (storage, make_storage()):
        closed.close_all()
        with pytest.raises(StorageError, match="was closed"):
            closed.read_ranges([reads_of(url, [(0, 1), (5, 6)])[0]])
    assert not fetchers() - before


def test_threads_that_fetch_let_shards_stay_open(local, tmp_path, monkeypatch):
    threads, ended = RequestThreads(200), threading.Event()
    for _ in range(200):
        threads.begin(ended.wait)
    threads.close()
    monkeypatch.setattr(open_shards, "files_allowed", lambda: 700)
    source = module(local, tmp_path).source("train")
    with OpenShards(source.index, source.cache) as shards:
        first = shards.reader(0)
        ended.set()
        shards.reader(1)
        assert shards.reader(0) is first


# --- streams


def test_each_byte_is_fetched_once_in_ranges_that_grow(server, storage, url):
    with storage.open_stream(url) as stream:
        stream.read()
    asked = sorted(server.ranges())
    assert [start for _, start, _ in asked] == [0, *(last + 1 for *_, last in asked[:-1])]
    sizes = [last + 1 - start for _, start, last in asked]
    assert sizes[:4] == [1_000, 2_000, 4_000, 4_000]
    assert max(sizes) == 4_000


@pytest.mark.parametrize(("connections", "most"), [(9, 3), (2, 2), (1, 1)])
def test_no_more_is_fetched_ahead_than_may_be(server, make_storage, url, connections, most):
    """What was read is 1,000 bytes; the rest waits to be read."""
    with make_storage(connections=connections).open_stream(url) as stream:
        stream.read(500)
        time.sleep(0.1)
        assert len(server.asked) == 1 + most


def enough():
    raise InterruptedError


@pytest.mark.parametrize("sound", [[], [None], [Fault("whole")]], ids=str)
def test_a_stalled_stream_is_called_off(server, make_storage, url, sound):
    """While it is opened, and while a range or all that there is, is waited for."""
    storage = make_storage(policy=None)
    server.faults = list(sound)
    server.always = Fault("stall", 10)

    def read():
        with storage.open_stream(url) as stream:
            stream.read()

    began = time.monotonic()
    with pytest.raises(InterruptedError), Cancellable(enough):
        read()
    assert time.monotonic() - began < ENDS_WITHIN_S
    server.reset()
    server.objects["data/0.tar"] = DATA
    with storage.open_stream(url) as stream:
        assert stream.read() == DATA


@pytest.mark.parametrize("answer", [Fault("whole"), Fault("parts")], ids=str)
def test_a_stream_without_ranges_goes_on_behind_a_break(server, storage, url, answer):
    """All of the object comes again, and its beginning is passed over."""
    server.always = answer
    server.faults = [answer, answer._replace(value=5_000), answer._replace(value=60_000)]
    with storage.open_stream(url) as stream:
        assert stream.read() == DATA
    assert len(server.asked) == 4
    server.faults = [answer, answer._replace(value=5_000), Fault("replace")]
    with storage.open_stream(url) as stream:
        assert stream.read(1_000) == DATA[:1_000]
        with pytest.raises(IndexMismatchError, match="another version"):
            stream.read()
