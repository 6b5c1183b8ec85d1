"""Calls of clients without time limits, as those of fsspec: each is waited for only so long."""

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from waiting import wait_for

from lightning_shards.errors import StorageError
from lightning_shards.shards.remote import other
from lightning_shards.shards.remote.answers.bounded_calls import BoundedCalls
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings

WITHIN_S = 20.0
LONG_S = 60.0
DATA = np.random.default_rng(0).bytes(3_000)
URL = "memory://bucket/a.tar"
SOON = RetryPolicy(tries=2, total_s=9, stall_s=1.0, first_pause_s=0.01, longest_pause_s=0.01)
HUNG = """
import threading
from fsspec.implementations.memory import MemoryFileSystem
from lightning_shards.errors import StorageError
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
MemoryFileSystem.info = lambda self, path: threading.Event().wait()
policy = RetryPolicy(tries=1, total_s=9, stall_s=0.3)
try:
    RemoteTransport(TransportSettings(policy=policy)).read("memory://bucket/a.tar", 0, 9)
except StorageError as error:
    print(error)
"""


def callers():
    return [each for each in threading.enumerate() if each.name == "bounded calls"]


@pytest.fixture
def is_over():
    event = threading.Event()
    yield event
    event.set()
    # one that goes on would call what the next test hangs
    assert wait_for(lambda: not callers(), WITHIN_S)


@pytest.fixture
def calls(is_over):
    made = BoundedCalls()
    yield made
    made.close()


@pytest.fixture
def transport(is_over):
    made = RemoteTransport(TransportSettings(policy=SOON))
    made.write(URL, DATA)
    yield made
    made.close()


@pytest.fixture
def hang(monkeypatch, is_over):
    """Makes some of the first calls of a method of the file system never return."""

    def hang(method, times):
        answer, begun = getattr(MemoryFileSystem, method), []

        def hung(*args, **settings):
            begun.append(method)
            if len(begun) <= times:
                is_over.wait(LONG_S)
            return answer(*args, **settings)

        monkeypatch.setattr(MemoryFileSystem, method, hung)
        return begun

    return hang


@pytest.mark.timeout(30)
@pytest.mark.parametrize("method", ["info", "cat_file", "_strip_protocol"])
def test_a_file_system_that_hangs_ends_in_an_error(method, transport, hang):
    begun = hang(method, 2)
    with pytest.raises(StorageError, match=r"a\.tar cannot be read: the server stalled \(try 2 of"):
        transport.read(URL, 0, 9)
    assert len(begun) == 2


@pytest.mark.timeout(30)
def test_one_that_hangs_once_is_asked_again_by_another_thread(transport, hang):
    hang("cat_file", 1)
    assert transport.read(URL, 5, 99).data == DATA[5:99]
    assert transport.counts.repeated == 1


@pytest.mark.timeout(30)
def test_a_file_system_that_hangs_while_it_writes_is_an_error(transport, hang):
    hang("pipe_file", 2)
    with pytest.raises(StorageError, match=r"a\.tar cannot be written: the server stalled"):
        transport.write(URL, b"new")


def test_a_process_ends_though_a_call_hangs(start_program, tmp_path):
    with start_program([sys.executable, "-c", HUNG], tmp_path) as process:
        said, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0
    assert "the server stalled (try 1 of 1)" in said


@pytest.mark.parametrize("size", [0, 999, 1_000, 1_001, 2_000, 2_999, 3_000, 4_000])
@pytest.mark.parametrize("has_version", [False, True])
def test_large_ranges_come_in_parts(size, has_version, transport, monkeypatch):
    monkeypatch.setattr(other, "_READ_AT_ONCE", 1_000)
    version = transport.read(URL, 0, 9).version if has_version else None
    read = MemoryFileSystem.cat_file
    asked = []

    def cat_file(self, path, begin, end):
        asked.append(end - begin)
        return read(self, path, begin, end)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    body = transport.read(URL, 0, size, version)
    assert (body.data, body.size) == (DATA[:size], len(DATA))
    assert max(asked) <= 1_000


def test_silence_counts_from_when_something_came_last(calls):
    waiting = threading.Event()

    def act(alive):
        for _ in range(4):
            waiting.wait(0.5)
            alive()
        return "done"

    assert calls.call(act, 1.5) == "done"


def test_one_thread_makes_one_call_after_the_other(calls):
    made_by = {calls.call(lambda _: threading.get_ident(), WITHIN_S) for _ in range(9)}
    assert len(made_by) == 1
    assert threading.get_ident() not in made_by


def test_calls_are_made_side_by_side(calls):
    together = threading.Barrier(8, timeout=WITHIN_S)
    with ThreadPoolExecutor(8) as pool:
        numbers = pool.map(lambda _: calls.call(lambda _: together.wait(), WITHIN_S), range(8))
    assert sorted(numbers) == list(range(8))


def test_an_error_of_a_call_is_raised_and_its_thread_makes_the_next_one(calls):
    def refuse(_):
        raise PermissionError(threading.current_thread().name)

    for _ in range(2):
        with pytest.raises(PermissionError, match="bounded calls"):
            calls.call(refuse, WITHIN_S)
    assert len(callers()) == 1


def test_closing_wakes_who_waits_and_ends_the_threads(calls, is_over):
    has_begun, errors = threading.Event(), []

    def act(_):
        has_begun.set()
        is_over.wait(LONG_S)

    def wait():
        with pytest.raises(ConnectionAbortedError) as caught:
            calls.call(act, LONG_S)
        errors.append(caught.value)

    thread = threading.Thread(target=wait)
    thread.start()
    assert has_begun.wait(WITHIN_S)
    calls.close()
    thread.join(WITHIN_S)
    assert errors
    is_over.set()
    assert wait_for(lambda: not callers(), WITHIN_S)


def test_no_call_is_made_after_closing(calls):
    calls.close()
    made = []
    with pytest.raises(ConnectionAbortedError):
        calls.call(made.append, WITHIN_S)
    assert not made
    assert wait_for(lambda: not callers(), WITHIN_S)


def test_threads_end_with_what_made_them(is_over):
    calls = BoundedCalls()
    calls.call(lambda _: None, WITHIN_S)
    assert callers()
    del calls
    gc.collect()
    assert wait_for(lambda: not callers(), WITHIN_S)
