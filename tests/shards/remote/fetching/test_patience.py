"""When a batch waits for pieces that are on their way."""

import pytest

from lightning_shards.shards.remote.cache.piece_names import Piece
from lightning_shards.shards.remote.fetching.link_speed import LinkSpeed
from lightning_shards.shards.remote.fetching.patience import Patience
from lightning_shards.shards.remote.fetching.segments import Segment

PIECE = Piece("u", "v", 0, 4_000_000)


def segments(size, number=4):
    memory = memoryview(bytearray(size))
    return [Segment("u", "v", 0, size, memory, PIECE)] * number


def patience(used_bytes_per_s, network_bytes_per_s):
    """After a batch of 1 MB that was used in some time, and a request for 1 MB."""
    link = LinkSpeed()
    found = Patience(link)
    found.asked(1_000_000, 0.0)
    assert not found.is_worth_it(segments(100_000))
    found.read(1.0)
    found.asked(1_000_000, 1.0 + 1_000_000 / used_bytes_per_s)
    if network_bytes_per_s:
        link.count(1_000_000, 1_000_000 / network_bytes_per_s)
    return found


@pytest.mark.parametrize(
    ("used", "network", "size", "waits"),
    [
        (100e6, 10e6, 100_000, True),
        (15e6, 10e6, 100_000, False),
        (100e6, None, 100_000, False),
        (15e6, 10e6, 1_000, True),
    ],
)
def test_a_batch_waits_where_the_network_is_slower_or_ranges_are_small(used, network, size, waits):
    assert patience(used, network).is_worth_it(segments(size)) == waits


def test_what_is_there_is_not_waited_for():
    assert not patience(100e6, 10e6).is_worth_it([])


def test_larger_pieces_may_take_longer():
    found = patience(100e6, 10e6)
    assert 0.5 < found.seconds_for(segments(1000)) < 3.0
    assert found.seconds_for([]) < found.seconds_for(segments(1000))
