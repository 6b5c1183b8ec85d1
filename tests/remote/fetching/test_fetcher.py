"""What is fetched ahead, what exactly, in which order, what batches get, and how fetchers end."""

import errno
import os
import random
import threading
import time

import pytest
from held_transport import MIB, VERSION, HeldTransport, cache_in, reads_of
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_for

from lightning_shards.errors import FileAccessError, StorageError
from lightning_shards.remote.fetcher import Fetcher
from lightning_shards.remote.pieces import Piece
from lightning_shards.remote.request_threads import RequestThreads

DATA = random.Random(1).randbytes(64_000)
LARGE = random.Random(2).randbytes(20 * MIB)
PIECES = [Piece("u", VERSION, begin, begin + 8000) for begin in range(0, 64_000, 8000)]
WITHIN_S = 10


@pytest.fixture
def transport():
    return HeldTransport({"u": DATA, "large": LARGE})


@pytest.fixture
def make_fetcher(transport, tmp_path):
    made = []

    def make(cache=None, threads=4, **others):
        cache = cache or cache_in(tmp_path / "cache")
        made.append(Fetcher(transport, RequestThreads(threads + 1), cache, **others))
        made[-1].read([])  # what is announced is fetched from the first batch on
        return made[-1]

    yield make
    for fetcher in made:
        fetcher.close()


def bytes_read(fetcher, reads):
    """What the ranges of one object hold, those of no or too few bytes cut."""
    (counts,) = fetcher.read([reads])
    place, found = 0, []
    for start, stop, count in zip(reads.starts, reads.stops, counts, strict=True):
        found.append(bytes(reads.into[place : place + count]))
        place += stop - start
    return found


def is_fetched(fetcher, number):
    """Whether so many requests were made, and nothing is fetched ahead any more."""
    asked = fetcher._transport.asked
    return wait_for(lambda: len(asked) == number and not fetcher._under_way, WITHIN_S)


def test_a_piece_that_is_announced_again_while_it_is_fetched_is_fetched_once(
    make_fetcher, transport
):
    transport.gates[0] = threading.Event()
    fetcher = make_fetcher()
    fetcher.fetch_ahead([*PIECES[:1], *PIECES[:3], *PIECES])
    assert transport.begun[0].wait(WITHIN_S)
    fetcher.fetch_ahead(PIECES)
    transport.gates[0].set()
    assert is_fetched(fetcher, 8)
    fetcher.fetch_ahead(PIECES)
    assert bytes_read(fetcher, reads_of("u", [(0, 64_000)])) == [DATA]
    assert len(transport.asked) == 8


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whatever_is_there_batches_get_the_right_bytes(tmp_path_factory, data):
    cuts = data.draw(st.lists(st.integers(0, 2000), unique=True, max_size=8).map(sorted))
    pieces = [Piece("u", VERSION, *cuts[i : i + 2]) for i in range(len(cuts) - 1)]
    span = st.tuples(st.integers(0, 2100), st.integers(0, 2100)).map(lambda it: tuple(sorted(it)))
    spans = sorted(data.draw(st.lists(span, max_size=6)))
    transport = HeldTransport({"u": DATA[:2000]})
    transport.failing = dict.fromkeys(
        data.draw(st.sets(st.sampled_from(cuts))) if cuts else [], StorageError("no")
    )
    fetcher = Fetcher(transport, RequestThreads(3), cache_in(tmp_path_factory.mktemp("cache")))
    fetcher.read([])
    fetcher.fetch_ahead(pieces)
    wait_for(lambda: transport.under_way == 0, WITHIN_S)
    transport.failing = {}
    found = bytes_read(fetcher, reads_of("u", spans))
    fetcher.close()
    assert found == [DATA[start : min(stop, 2000)] for start, stop in spans]


def test_a_piece_that_does_not_come_in_time_is_not_waited_for(make_fetcher, transport):
    transport.gates[0] = threading.Event()
    fetcher = make_fetcher(wait_s=0.1)
    fetcher.fetch_ahead([Piece("large", VERSION, 0, 8 * MIB)])
    assert transport.begun[0].wait(WITHIN_S)
    assert bytes_read(fetcher, reads_of("large", [(10, MIB)])) == [LARGE[10:MIB]]
    assert transport.asked[-1] == ("large", 10, MIB)


def test_a_piece_of_a_process_that_ends_is_fetched_after_all(make_fetcher, tmp_path):
    other = cache_in(tmp_path / "cache")
    assert other.open(PIECES[0]) is None
    part = other._begin(other._path_of(PIECES[0]))  # as if it were fetched there
    fetcher = make_fetcher(wait_s=0.1)
    fetcher.fetch_ahead(PIECES)
    assert is_fetched(fetcher, 7)
    assert bytes_read(fetcher, reads_of("u", [(10, 20)])) == [DATA[10:20]]
    begun = time.perf_counter()
    assert bytes_read(fetcher, reads_of("u", [(30, 40)])) == [DATA[30:40]]
    assert time.perf_counter() - begun < 0.1  # it is not waited for once more
    del part  # the process was killed
    fetcher.fetch_ahead(PIECES)
    assert is_fetched(fetcher, 10)
    other.close()


def test_an_error_of_a_piece_is_quiet_and_that_of_a_batch_is_raised(make_fetcher, transport):
    transport.failing = {0: StorageError("first"), 100: StorageError("second")}
    fetcher = make_fetcher(threads=1)
    fetcher.fetch_ahead(PIECES[:2])
    assert is_fetched(fetcher, 2)
    with pytest.raises(StorageError, match="second"):
        fetcher.read([reads_of("u", [(100, 200)])])
    assert bytes_read(fetcher, reads_of("u", [(200, 300)])) == [DATA[200:300]]


def test_after_an_error_nothing_is_written_to_the_memory_of_the_batch(make_fetcher, transport):
    far, is_late, answer = 16 * MIB, threading.Event(), transport.read

    def read(url, begin, end, version):
        if begin < far:
            assert transport.begun[far].wait(WITHIN_S)
            raise StorageError("no")
        transport.begun[far].set()
        assert is_late.wait(WITHIN_S)
        return answer(url, begin, end, version)

    transport.read = read
    reads = reads_of("large", [(0, 10), (far, far + 10)])
    fetcher = make_fetcher()
    with pytest.raises(StorageError, match="no"):
        fetcher.read([reads])
    is_late.set()
    assert wait_for(lambda: not transport.under_way, WITHIN_S)
    assert bytes(reads.into) == bytes(20)


def test_a_version_that_changes_is_told_with_the_batch(make_fetcher, transport):
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES[:2])
    assert is_fetched(fetcher, 2)
    transport.version = "9-8"
    assert bytes_read(fetcher, reads_of("u", [(10, 20)])) == [DATA[10:20]]  # what was fetched holds
    assert fetcher.read([reads_of("u", [(20_000, 20_010), (30_000, 30_001)])]) == [[-1, -1]]
    assert fetcher.read([reads_of("u", [(10, 10)])]) == [[-1]]  # asked for, as nothing else shows


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("fcntl.flock", errno.ENOLCK, "No locks available"),
        ("open_piece", errno.EMFILE, "raise the limit of open files"),
        ("write_piece", errno.ENOSPC, "No space left on device; make room there"),
    ],
)
def test_a_cache_that_cannot_be_used_is_one_warning_and_batches_are_read_exactly(
    name, number, said, make_fetcher, monkeypatch, caplog
):
    def failing(*_):
        raise OSError(number, os.strerror(number))

    fetcher = make_fetcher()
    with monkeypatch.context() as patching:
        patching.setattr(f"lightning_shards.remote.cache.{name}", failing)
        fetcher.fetch_ahead(PIECES)
        assert wait_for(lambda: not fetcher._coming, WITHIN_S)
        assert bytes_read(fetcher, reads_of("u", [(10, 20)])) == [DATA[10:20]]
    (record,) = caplog.records
    assert said in record.getMessage()


def test_a_folder_that_others_may_write_is_an_error_of_the_batch(make_fetcher, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES[:1])
    with pytest.raises(FileAccessError, match="may be written by other users"):
        fetcher.read([reads_of("u", [(0, 10)])])
