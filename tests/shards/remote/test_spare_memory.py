"""Memory is used again for later ranges, and never while somebody needs its bytes."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter

import pytest
from fault_server import Fault

from lightning_shards.shards.remote.answers import spare_memory
from lightning_shards.shards.remote.answers.spare_memory import SpareMemory
from lightning_shards.shards.remote.backend import RangeAnswer, RequestBackend
from lightning_shards.shards.remote.partial_body import PartialBody
from lightning_shards.shards.remote.retries import RetryPolicy
from tests.shards.remote.conftest import url_of
from tests.shards.remote.contract import DATA

SIZE = 1 << 17


@pytest.mark.parametrize("size", [SIZE, SIZE - 9, SIZE + 9, 3 * SIZE])
def test_memory_is_given_out_again_in_any_size(size):
    spare, memory = SpareMemory(), bytearray(SIZE)
    spare.give_back(memory)
    assert spare.take(size) is memory
    assert len(memory) == size
    assert spare.take(size) is not memory


def test_memory_that_somebody_looks_at_is_left_alone():
    spare, memory = SpareMemory(), bytearray(b"x" * SIZE)
    view = memoryview(memory)
    spare.give_back(memory)
    assert spare.take(SIZE + 1) is not memory
    assert bytes(view) == b"x" * SIZE


def test_little_is_kept():
    spare = SpareMemory()
    for _ in range(200):
        spare.give_back(bytearray(SIZE))
        spare.give_back(bytearray(9))
    assert sum(map(len, spare._spare)) == spare_memory._MOST
    spare.give_back(bytearray(2 * spare_memory._MOST))
    assert sum(map(len, spare._spare)) == spare_memory._MOST


@pytest.mark.network
@pytest.mark.parametrize("fault", [None, Fault("cut", 1_000)], ids=["whole", "broken"])
def test_later_ranges_hold_no_byte_of_earlier_ones(fault, make_transport, server, monkeypatch):
    monkeypatch.setattr(spare_memory, "_LEAST", 1)
    server.objects["data/a.tar"] = DATA
    transport, url = make_transport(), url_of(server, "http", "a.tar")
    draws = random.Random(5)
    spans = [sorted(draws.sample(range(len(DATA) + 1), 2)) for _ in range(60)]

    def read(span):
        if fault is not None and span[0] % 3 == 0:
            server.faults.append(fault)
        data = transport.read(url, *span).data
        is_right = data == DATA[slice(*span)]
        transport.take_back(data)
        return is_right

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, spans))
    assert transport._spare._spare


def test_a_range_that_comes_in_short_answers_holds_none_of_what_was_in_its_memory():
    asked = []

    class Short(RequestBackend):
        @contextmanager
        def get(self, url, begin, end, version):
            asked.append((begin, end))
            stop = min(end, begin + 1000)
            yield RangeAnswer(begin, stop, len(DATA), '"v"', [DATA[begin:stop]])

        def put(self, url, data):
            raise NotImplementedError

    partial = PartialBody("u", 100, 2600, None, lambda size: bytearray(b"x" * size))
    while not partial.is_whole:
        partial.fill(Short(), RetryPolicy(), perf_counter)
    assert partial.data == DATA[100:2600]
    assert asked == [(100, 2600), (1100, 2600), (2100, 2600)]
