"""What every transport promises, whatever store it reads: one suite for all backends."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from read_elsewhere import Read, read_elsewhere

from lightning_shards.errors import IndexMismatchError, ShardNotFoundError
from lightning_shards.remote.transport import RemoteTransport

DATA = np.random.default_rng(0).bytes(100_003)
SIZE = len(DATA)


@dataclass
class Store:
    """A store that holds `DATA` as `some/data.tar`, and a transport that reads it."""

    transport: RemoteTransport
    url_of: Callable[[str], str]
    put: Callable[[str, bytes], None]

    @property
    def url(self) -> str:
        return self.url_of("some/data.tar")


class TransportContract:
    """Needs the fixture `store`."""

    # All examples read the one store that the test was given
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(0, SIZE + 9), st.integers(0, SIZE))
    @example(0, SIZE)
    @example(0, SIZE + 1)
    @example(SIZE - 1, 1)
    @example(SIZE - 1, 2)
    @example(SIZE, 0)
    @example(SIZE, 1)
    @example(SIZE + 1_000_000, 5)
    @example(0, 0)
    @example(0, 1)
    def test_a_range_is_that_of_the_bytes(self, store: Store, begin: int, length: int) -> None:
        end = begin + length
        body = store.transport.read(store.url, begin, end)
        assert (body.data, body.stat.size) == (DATA[begin:end], SIZE)
        assert store.transport.read(store.url, begin, end, body.stat) == body

    @pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (0, 99), (7, 99)])
    def test_an_empty_object_has_no_bytes(self, store: Store, begin: int, end: int) -> None:
        store.put("empty", b"")
        body = store.transport.read(store.url_of("empty"), begin, end)
        assert (body.data, body.stat.size) == (b"", 0)

    @pytest.mark.parametrize(
        "name", ["a b/ü+(1)~.tar", "a%20b.tar", "100%.tar", "a::b.tar", "a&b=c;d,e@f.tar"]
    )
    def test_a_name_may_hold_what_urls_escape(self, name: str, store: Store) -> None:
        store.put(name.replace("%20", " "), b"another object")
        store.put(name, b"abc")
        assert store.transport.read(store.url_of(name), 1, 9).data == b"bc"

    def test_another_version_is_refused(self, store: Store) -> None:
        store.put("changed", b"old bytes")
        url = store.url_of("changed")
        old = store.transport.read(url, 0, 3)
        store.put("changed", b"new bytes")  # of the same size, as tars often are
        with pytest.raises(IndexMismatchError, match=r"changed cannot be read: it is another vers"):
            store.transport.read(url, 0, 3, old.stat)
        new = store.transport.read(url, 0, 3)
        assert new.stat != old.stat
        assert new.data == b"new"

    def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        with pytest.raises(ShardNotFoundError, match=r"absent\.tar"):
            store.transport.read(store.url_of("absent.tar"), 0, 3)

    def test_threads_read_side_by_side(self, store: Store) -> None:
        begins = range(0, SIZE, 5_000)
        with ThreadPoolExecutor(8) as pool:
            bodies = pool.map(lambda at: store.transport.read(store.url, at, at + 5_000), begins)
        assert b"".join(body.data for body in bodies) == DATA


def read_in_fork(transport: RemoteTransport, reads: Sequence[Read]) -> list[bytes | str]:
    """What a fork of this process gets for these reads."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=read_elsewhere, args=(transport, reads, theirs))
    process.start()
    theirs.close()
    try:
        answers: list[bytes | str] = []
        while len(answers) < len(reads):
            assert ours.poll(20), f"no answer after {answers}"
            answers.append(ours.recv())
        return answers
    finally:
        process.kill()
        process.join()
        ours.close()
