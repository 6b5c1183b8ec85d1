"""The arithmetic of what an epoch fetches to a node, and of the run that suits the network."""

import numpy as np
import pytest

from lightning_shards.shards.remote.fetching.fetch_needs import (
    FetchNeeds,
    NodeShare,
    ReadData,
    RunAndBlock,
    fetch_needs,
    suitable_run,
)

COUNTS = np.array([700, 0, 513, 64, 1000, 96])
SAMPLES = int(COUNTS.sum())


def shuffled(sample_bytes, run=64, counts=COUNTS, **others):
    return ReadData(counts, int(counts.sum() * sample_bytes), "shuffled", run, 16_384, **others)


@pytest.mark.parametrize("run", [1, 7, 64, 100, 512, 5000])
def test_a_piece_is_the_part_of_a_run_in_one_shard(run):
    shards = np.repeat(np.arange(len(COUNTS)), COUNTS)
    parts = set(zip(shards.tolist(), (np.arange(SAMPLES) // run).tolist(), strict=True))
    assert shuffled(100, run).num_pieces == len(parts)


def test_whole_shards_are_the_pieces_of_run_0():
    assert shuffled(100, run=0).num_pieces == np.count_nonzero(COUNTS)


def test_one_node_fetches_each_byte_once_and_a_request_for_each_piece():
    data = shuffled(2000)
    needs = fetch_needs(data, NodeShare(1.0, SAMPLES, 10))
    assert needs == FetchNeeds(data.size_bytes, data.num_pieces, is_kept=True)


def test_pieces_above_8_mib_are_fetched_in_parts():
    data = shuffled(300_000, counts=np.array([6400]))  # pieces of 19 MB
    assert fetch_needs(data, NodeShare(1.0, 6400, 10)).requests == 3 * 100


def test_nodes_that_share_runs_fetch_them_whole_until_samples_alone_are_cheaper():
    data = shuffled(100_000, counts=np.array([64_000]))
    eighth = fetch_needs(data, NodeShare(1 / 8, 8000, 10))
    assert eighth.is_kept
    assert eighth.size_bytes == pytest.approx(data.size_bytes, rel=0.01)
    few = fetch_needs(data, NodeShare(1 / 64, 1000, 10))
    assert few == FetchNeeds(100_000 * 1000, 1000, is_kept=False)


def test_samples_of_a_mebibyte_are_fetched_one_by_one_and_streams_by_8_mib():
    large = shuffled(2**20, counts=np.array([100]))
    assert fetch_needs(large, NodeShare(0.5, 50, 10)) == (50 * 2**20, 50, True)
    stream = shuffled(2**20, counts=np.array([100]), is_streamed=True)
    assert fetch_needs(stream, NodeShare(0.5, 50, 10)) == (50 * 2**20, 7, False)
    in_order = ReadData(COUNTS, SAMPLES * 100, "sequential", 64, 1)
    assert fetch_needs(in_order, NodeShare(1.0, SAMPLES, 37)).requests == 37


def test_an_epoch_of_draws_fetches_as_many_runs_as_it_has_samples_for():
    data = ReadData(np.array([64_000]), 64_000 * 20_000, "resampled", 64, 16_384)
    assert fetch_needs(data, NodeShare(1.0, 6400, 10)).requests == 100


@pytest.mark.parametrize(
    ("sample_bytes", "run", "suitable"),
    [
        (2_600, 64, RunAndBlock(512, 131_072)),  # SMALL
        (4_600, 64, RunAndBlock(256, 65_536)),  # TOK
        (102_000, 64, None),  # IMG
        (2_600, 512, None),
        (10, 64, RunAndBlock(4096, 2**20)),  # no block is larger
        (2_600, 0, None),
    ],
)
def test_the_run_that_suits_has_pieces_of_a_mebibyte(sample_bytes, run, suitable):
    assert suitable_run(shuffled(sample_bytes, run, np.full(9, 100_000))) == suitable


def test_a_run_that_no_shard_holds_is_not_advised():
    assert suitable_run(shuffled(2_600, 64, np.full(100, 300))) == RunAndBlock(256, 65_536)
    assert suitable_run(shuffled(2_600, 64, np.full(100, 64))) is None
    assert suitable_run(shuffled(0, 64)) is None


def test_thirteen_thousand_shards_cost_no_time():
    data = shuffled(146_000, counts=np.full(13_916, 4096))
    assert data.num_pieces == 13_916 * 64
    assert fetch_needs(data, NodeShare(1 / 2, data.samples / 2, 10)).is_kept
