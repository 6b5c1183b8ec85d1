"""What a process learns of latency and bandwidth from its own requests."""

import pytest

from lightning_shards.shards.remote.fetching.link_speed import LinkSpeed


def measured():
    """A link of 0.1 s and 10 MB/s for a connection."""
    link = LinkSpeed()
    for _ in range(40):
        link.count(100_000, 0.11)
        link.count(4_000_000, 0.5)
    return link


def test_before_anything_is_measured_little_is_read_in_vain():
    assert LinkSpeed().gap == 65_536


def test_small_requests_tell_the_latency_and_large_ones_the_speed():
    link = measured()
    assert link.seconds_of(0) == pytest.approx(0.1, rel=0.05)
    assert link.seconds_of(10_000_000) == pytest.approx(1.1, rel=0.05)
    assert link.gap == pytest.approx(1_000_000, rel=0.05)


def test_requests_that_were_repeated_or_had_to_wait_change_nothing():
    link = measured()
    for _ in range(6):
        link.count(1000, 100.0)
        link.count(4_000_000, 100.0)
    assert link.gap == pytest.approx(1_000_000, rel=0.05)


def test_requests_at_once_share_what_the_process_gets():
    link = LinkSpeed()
    assert link.bytes_per_s is None
    for _ in range(5):
        link.count(1_000_000, 0.5, at_once=8)
    assert link.bytes_per_s == pytest.approx(16e6)


@pytest.mark.parametrize("size", [1_000_000, 50_000])
def test_what_batches_fetch_does_not_tell_how_many_pieces_are_worth_it(size):
    link = LinkSpeed()
    assert link.pieces_bytes_per_s == 0
    link.count(size, 0.05, at_once=4, is_piece=True)
    for _ in range(20):
        link.count(4000, 0.04, at_once=32)
    assert link.pieces_bytes_per_s == pytest.approx(80 * size)
    assert link.latency_s == pytest.approx(0.04, rel=0.05)


def test_no_time_at_all_is_no_error():
    link = LinkSpeed()
    for _ in range(20):
        link.count(0, 0.0)
        link.count(1 << 20, 0.0)
    assert link.gap == 0
    assert link.seconds_of(1 << 20) < 1e-6
