"""What fetching guarantees, in the names of its tests: the order, the bytes, and its end."""

import errno
import os
import random
import threading
import time

import pytest
from held_transport import MIB, STAT, HeldTransport, cache_in, reads_of
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_for

from lightning_shards.errors import FileAccessError, StorageError
from lightning_shards.remote import storage as remote_storage
from lightning_shards.remote.pieces import Piece
from lightning_shards.remote.storage import RemoteStorage
from lightning_shards.shards.storage.protocol import ShardReads

DATA = random.Random(1).randbytes(64_000)
LARGE = random.Random(2).randbytes(20 * MIB)
PIECES = [Piece("u", begin, begin + 8000, STAT) for begin in range(0, 64_000, 8000)]
WITHIN_S = 10


@pytest.fixture
def transport():
    return HeldTransport({"u": DATA, "large": LARGE})


@pytest.fixture
def make_storage(transport, tmp_path):
    made = []

    def make(threads=4):
        made.append(RemoteStorage(transport, threads, cache_in(tmp_path / "cache")))
        made[-1].read_ranges([])  # what is announced is fetched from the first batch on
        return made[-1]

    yield make
    for storage in made:
        storage.close_all()


def announce(storage, pieces):
    storage.prefetch([ShardReads(it.url, [it.begin], [it.end], it.stat) for it in pieces])


def bytes_read(storage, reads):
    """What the ranges of one object hold, those of no or too few bytes cut."""
    (counts,) = storage.read_ranges([reads])
    place, found = 0, []
    for start, stop, count in zip(reads.starts, reads.stops, counts, strict=True):
        found.append(bytes(reads.into[place : place + count]))
        place += stop - start
    return found


def is_fetched(storage, number):
    """Whether so many requests were made, and nothing is fetched ahead any more."""
    asked = storage._transport.asked
    return wait_for(lambda: len(asked) == number and not storage._under_way, WITHIN_S)


def test_a_piece_that_is_announced_again_while_it_is_fetched_is_fetched_once(
    make_storage, transport
):
    transport.gates[0] = threading.Event()
    storage = make_storage()
    announce(storage, [*PIECES[:1], *PIECES[:3], *PIECES])
    assert transport.begun[0].wait(WITHIN_S)
    announce(storage, PIECES)
    transport.gates[0].set()
    assert is_fetched(storage, 8)
    announce(storage, PIECES)
    assert bytes_read(storage, reads_of("u", [(0, 64_000)])) == [DATA]
    assert len(transport.asked) == 8


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whatever_is_there_batches_get_the_right_bytes(tmp_path_factory, data):
    cuts = data.draw(st.lists(st.integers(0, 2000), unique=True, max_size=8).map(sorted))
    pieces = [Piece("u", *cuts[i : i + 2], STAT) for i in range(len(cuts) - 1)]
    span = st.tuples(st.integers(0, 2100), st.integers(0, 2100)).map(lambda it: tuple(sorted(it)))
    spans = sorted(data.draw(st.lists(span, max_size=6)))
    transport = HeldTransport({"u": DATA[:2000]})
    transport.failing = dict.fromkeys(
        data.draw(st.sets(st.sampled_from(cuts))) if cuts else [], StorageError("no")
    )
    storage = RemoteStorage(transport, 2, cache_in(tmp_path_factory.mktemp("cache")))
    storage.read_ranges([])
    announce(storage, pieces)
    wait_for(lambda: transport.under_way == 0, WITHIN_S)
    transport.failing = {}
    found = bytes_read(storage, reads_of("u", spans))
    storage.close_all()
    assert found == [DATA[start : min(stop, 2000)] for start, stop in spans]


def test_a_piece_of_a_process_that_ends_is_fetched_after_all(make_storage, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_storage, "_WAIT_S", 0.1)
    other = cache_in(tmp_path / "cache")
    assert not other.has(PIECES[0])
    part = other._begun(other._path_of(PIECES[0]))  # as if it were fetched there
    storage = make_storage()
    announce(storage, PIECES)
    assert is_fetched(storage, 7)
    assert bytes_read(storage, reads_of("u", [(10, 20)])) == [DATA[10:20]]
    begun = time.perf_counter()
    assert bytes_read(storage, reads_of("u", [(30, 40)])) == [DATA[30:40]]
    assert time.perf_counter() - begun < 0.1  # it is not waited for once more
    part.close()  # the process was killed
    announce(storage, PIECES)
    assert is_fetched(storage, 10)
    other.close()


def test_an_error_of_a_piece_is_quiet_and_that_of_a_batch_is_raised(make_storage, transport):
    transport.failing = {0: StorageError("first"), 100: StorageError("second")}
    storage = make_storage(threads=1)
    announce(storage, PIECES[:2])
    assert is_fetched(storage, 2)
    with pytest.raises(StorageError, match="second"):
        storage.read_ranges([reads_of("u", [(100, 200)])])
    assert bytes_read(storage, reads_of("u", [(200, 300)])) == [DATA[200:300]]


def test_after_an_error_nothing_is_written_to_the_memory_of_the_batch(make_storage, transport):
    far, is_late, answer = 16 * MIB, threading.Event(), transport.read

    def read(url, begin, end, stat):
        if begin < far:
            assert transport.begun[far].wait(WITHIN_S)
            raise StorageError("no")
        transport.begun[far].set()
        assert is_late.wait(WITHIN_S)
        return answer(url, begin, end, stat)

    transport.read = read
    reads = reads_of("large", [(0, 10), (far, far + 10)])
    storage = make_storage()
    with pytest.raises(StorageError, match="no"):
        storage.read_ranges([reads])
    is_late.set()
    assert wait_for(lambda: not transport.under_way, WITHIN_S)
    assert bytes(reads.into) == bytes(20)


def test_a_version_that_changes_is_told_with_the_batch(make_storage, transport):
    storage = make_storage()
    announce(storage, PIECES[:2])
    assert is_fetched(storage, 2)
    transport.number = 8
    assert bytes_read(storage, reads_of("u", [(10, 20)])) == [DATA[10:20]]  # what was fetched holds
    assert storage.read_ranges([reads_of("u", [(20_000, 20_010), (30_000, 30_001)])]) == [[-1, -1]]
    # an empty range is asked for, as nothing else shows a change
    assert storage.read_ranges([reads_of("u", [(10, 10)])]) == [[-1]]


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("fcntl.flock", errno.ENOLCK, "No locks available"),
        ("read_piece", errno.EMFILE, "raise the limit of open files"),
        ("write_piece", errno.ENOSPC, "No space left on device; make room there"),
    ],
)
def test_a_cache_that_cannot_be_used_is_one_warning_and_batches_are_read_exactly(
    name, number, said, make_storage, monkeypatch, caplog
):
    def failing(*_):
        raise OSError(number, os.strerror(number))

    storage = make_storage()
    with monkeypatch.context() as patching:
        patching.setattr(f"lightning_shards.remote.cache.{name}", failing)
        announce(storage, PIECES)
        assert wait_for(lambda: not storage._coming, WITHIN_S)
        assert bytes_read(storage, reads_of("u", [(10, 20)])) == [DATA[10:20]]
    (record,) = caplog.records
    assert said in record.getMessage()


def test_a_folder_that_others_may_write_is_an_error_of_the_batch(make_storage, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    storage = make_storage()
    with pytest.raises(FileAccessError, match="may be written by other users"):
        announce(storage, PIECES[:1])
