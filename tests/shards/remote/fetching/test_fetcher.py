"""What is fetched ahead, what exactly, in which order, and what batches get."""

import threading
import time

from held_fetcher import DATA, LARGE, PIECES, WITHIN_S, bytes_read, is_fetched
from held_transport import MIB, HeldTransport, cache_in, reads_of
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_for

from lightning_shards.errors import StorageError
from lightning_shards.shards.remote.pieces import Piece
from lightning_shards.shards.storage.fetcher import Fetcher


def test_without_pieces_a_batch_is_read_exactly(make_fetcher, transport):
    spans = [(5, 90), (300, 300), (400, 500), (63_990, 64_000)]
    fetcher = make_fetcher()
    assert bytes_read(fetcher, reads_of("u", spans)) == [DATA[slice(*span)] for span in spans]
    assert transport.asked == [("u", 5, 64_000)]  # the gaps cost less than requests
    assert fetcher.counts.read_bytes == 195
    assert fetcher.counts.exact_bytes == 63_995
    assert fetcher.counts.cached_bytes == 0


def test_what_was_announced_is_fetched_once_and_read_from_the_cache(make_fetcher, transport):
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES)
    assert is_fetched(fetcher, len(PIECES))
    spans = [(0, 10), (7990, 8010), (100, 64_000)]  # a range may lie in several pieces
    assert bytes_read(fetcher, reads_of("u", spans)) == [DATA[slice(*span)] for span in spans]
    assert sorted(transport.asked) == [("u", piece.begin, piece.end) for piece in PIECES]
    assert fetcher.counts.cached_bytes == fetcher.counts.read_bytes
    assert fetcher.counts.exact_requests == 0


def test_pieces_begin_with_the_requests_of_the_first_batch(transport, tmp_path):
    fetcher = Fetcher(transport, cache_in(tmp_path / "cache"), threads=4)
    fetcher.fetch_ahead(PIECES[:2])
    fetcher.fetch_ahead(PIECES[2:])
    time.sleep(0.02)
    assert not transport.asked
    gate = transport.gates[10] = threading.Event()
    reader = threading.Thread(target=lambda: fetcher.read([reads_of("u", [(10, 20)])]))
    reader.start()
    is_ahead = is_fetched(fetcher, 6)  # while the batch waits for an answer
    gate.set()
    reader.join(WITHIN_S)
    fetcher.close()
    assert is_ahead
    assert len(transport.asked) == 7


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


def test_a_piece_that_was_begun_is_waited_for_when_others_are_announced(make_fetcher, transport):
    """As in the middle of a block, where the next one is announced alone."""
    transport.gates[0] = threading.Event()
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES[:1])
    assert transport.begun[0].wait(WITHIN_S)
    fetcher.fetch_ahead(PIECES[1:2])
    threading.Timer(0.15, transport.gates[0].set).start()
    assert bytes_read(fetcher, reads_of("u", [(10, 20)])) == [DATA[10:20]]
    assert fetcher.counts.exact_requests == 0


def test_what_is_no_longer_announced_is_no_longer_fetched(make_fetcher, transport):
    transport.gates[0] = threading.Event()
    fetcher = make_fetcher(threads=1)
    fetcher.fetch_ahead(PIECES[:4])
    assert transport.begun[0].wait(WITHIN_S)
    fetcher.fetch_ahead(PIECES[4:])
    transport.gates[0].set()
    assert is_fetched(fetcher, 5)
    assert [begin for _, begin, _ in transport.asked] == [0, 32_000, 40_000, 48_000, 56_000]
    # and the older one is still known to be in the cache
    assert bytes_read(fetcher, reads_of("u", [(10, 20)])) == [DATA[10:20]]
    assert fetcher.counts.exact_requests == 0


def test_a_piece_above_8_mib_comes_in_parts(make_fetcher, transport):
    fetcher = make_fetcher()
    fetcher.fetch_ahead([Piece("large", '"v"', 11, 20 * MIB - 11)])
    assert is_fetched(fetcher, 3)
    spans = [(11, 20 * MIB - 11), (9 * MIB, 9 * MIB + 5)]
    found = bytes_read(fetcher, reads_of("large", spans))
    assert found == [LARGE[slice(*span)] for span in spans]
    assert transport.bytes_asked == 20 * MIB - 22
    assert max(end - begin for _, begin, end in transport.asked) <= 8 * MIB


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whatever_is_there_batches_get_the_right_bytes(tmp_path_factory, data):
    cuts = data.draw(st.lists(st.integers(0, 2000), unique=True, max_size=8).map(sorted))
    pieces = [Piece("u", '"v"', *cuts[i : i + 2]) for i in range(len(cuts) - 1)]
    span = st.tuples(st.integers(0, 2100), st.integers(0, 2100)).map(lambda it: tuple(sorted(it)))
    spans = sorted(data.draw(st.lists(span, max_size=6)))
    transport = HeldTransport({"u": DATA[:2000]})
    transport.failing = dict.fromkeys(
        data.draw(st.sets(st.sampled_from(cuts))) if cuts else [], StorageError("no")
    )
    fetcher = Fetcher(transport, cache_in(tmp_path_factory.mktemp("cache")), threads=2)
    fetcher.read([])
    fetcher.fetch_ahead(pieces)
    wait_for(lambda: transport.under_way == 0, WITHIN_S)
    transport.failing = {}
    found = bytes_read(fetcher, reads_of("u", spans))
    fetcher.close()
    assert found == [DATA[start : min(stop, 2000)] for start, stop in spans]


def test_a_batch_does_not_wait_for_a_piece_that_failed(make_fetcher, transport):
    transport.failing[0] = StorageError("no")
    fetcher = make_fetcher(wait_s=3 * WITHIN_S)
    fetcher.fetch_ahead(PIECES[:1])
    wait_for(lambda: not fetcher._here()._coming, WITHIN_S)
    transport.failing.clear()
    begun = time.perf_counter()
    assert bytes_read(fetcher, reads_of("u", [(10, 20)])) == [DATA[10:20]]
    assert time.perf_counter() - begun < WITHIN_S


def test_a_piece_that_does_not_come_in_time_is_not_waited_for(make_fetcher, transport):
    transport.gates[0] = threading.Event()
    fetcher = make_fetcher(wait_s=0.1)
    fetcher.fetch_ahead([Piece("large", '"v"', 0, 8 * MIB)])
    assert transport.begun[0].wait(WITHIN_S)
    assert bytes_read(fetcher, reads_of("large", [(10, MIB)])) == [LARGE[10:MIB]]
    assert fetcher.counts.exact_requests == 1
    assert not transport.gates[0].is_set()


def test_what_was_dropped_is_fetched_with_the_next_announcement(make_fetcher, transport, tmp_path):
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES[:4])
    assert is_fetched(fetcher, 4)
    for piece in PIECES[:2]:
        (tmp_path / "cache" / "pieces" / piece.folder / piece.name).unlink()
    fetcher.fetch_ahead(PIECES[:5])
    assert not fetcher.has_all()
    assert is_fetched(fetcher, 7)
    assert sorted(begin for _, begin, _ in transport.asked[4:]) == [0, 8000, 32_000]


def test_pieces_under_way_take_48_mib_of_memory_at_most(make_fetcher, transport):
    pieces = [Piece("many", '"v"', begin, begin + 8 * MIB) for begin in range(0, 80 * MIB, 8 * MIB)]
    transport.objects["many"] = bytes(80 * MIB)
    for piece in pieces:
        transport.gates[piece.begin] = threading.Event()
    fetcher = make_fetcher(threads=64)
    fetcher.fetch_ahead(pieces)
    assert wait_for(lambda: transport.under_way == 6, WITHIN_S)
    time.sleep(0.05)
    assert transport.most_under_way == 6
    transport.gates[pieces[0].begin].set()
    waiting = [transport.begun[piece.begin] for piece in pieces[6:]]  # whichever has the lock first
    assert wait_for(lambda: any(begun.is_set() for begun in waiting), WITHIN_S)
    for gate in transport.gates.values():
        gate.set()
    assert is_fetched(fetcher, 10)
