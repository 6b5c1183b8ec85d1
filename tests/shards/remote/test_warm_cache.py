"""Epochs of which all pieces are in the cache: none are worked out, and no byte is another one."""

import os
from itertools import islice

import numpy as np
import pytest
from waiting import wait_for

from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.readers.ahead import piece_plan
from lightning_shards.shards.remote.fetching import open_pieces
from tests.shards.remote.published import module

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

WITHIN_S = 10
BATCHES = 8  # of an epoch
BLOCKS = {"shuffle_run": 2, "shuffle_block": 4}


@pytest.fixture
def worked_out(monkeypatch):
    """The turns of the blocks whose pieces are worked out."""
    turns, pieces_ahead = [], piece_plan.pieces_ahead

    def counted(*args, **kwargs):
        for block in pieces_ahead(*args, **kwargs):
            turns.append(block.turn)
            yield block

    monkeypatch.setattr(piece_plan, "pieces_ahead", counted)
    return turns


class Pair:
    """The epochs of remote shards, each compared with the same one of local shards."""

    def __init__(self, remote, local, worked_out):
        self.remote, self.local, self._worked_out = remote, local, worked_out

    def read(self, number=1):
        """Read epochs; how many blocks were worked out for them."""
        before = len(self._worked_out)
        for remote, local in islice(zip(self.remote, self.local, strict=True), number * BATCHES):
            assert content(remote.batch) == content(local.batch)
        return len(self._worked_out) - before

    def read_until_warm(self):
        assert wait_for(lambda: not self.read(), WITHIN_S)


def content(batch):
    return {name: np.asarray(value).tobytes() for name, value in batch.items() if name != "__url__"}


@pytest.fixture
def warm(published_shards, local, tmp_path, worked_out, monkeypatch):
    """Epochs of which all pieces are in the cache; few of them stay open."""
    monkeypatch.setattr(open_pieces, "_MOST_OPEN", 1)
    remote = module(published_shards, tmp_path, loader={"cache_gib": 1}, **BLOCKS).source("train")
    streams = [
        source.batches(Place(), Cursor())
        for source in (remote, module(local, tmp_path, **BLOCKS).source("train"))
    ]
    pair = Pair(*streams, worked_out)
    pair.read_until_warm()
    yield pair
    for stream in streams:
        stream.close()


@pytest.fixture
def kept(tmp_path):
    """Gives the files of the pieces that are kept."""
    folder = tmp_path / "cache" / "pieces"
    return lambda: {path for path in folder.glob("*/*-*") if path.name[0].isdigit()}


def test_no_pieces_are_worked_out_once_all_are_in_the_cache(warm, server):
    server.asked.clear()
    assert warm.read(5) == 0
    assert not server.asked


def test_a_piece_that_was_dropped_is_fetched_and_pieces_are_worked_out_again(
    warm, kept, server, worked_out
):
    before, number = kept(), len(worked_out)
    server.asked.clear()
    for path in sorted(before)[:3]:
        path.unlink()
    assert wait_for(lambda: [warm.read(), kept() == before][1], WITHIN_S)
    assert server.asked
    assert len(worked_out) > number
    warm.read_until_warm()
    assert warm.read(2) == 0


def test_a_cache_that_is_lost_while_it_is_warm_costs_requests_and_no_data(warm, kept):
    for path in kept():
        path.unlink()
    assert warm.read(4) > 0


def test_a_piece_that_changed_on_the_disk_is_told_once_and_fetched_again(
    warm, kept, server, caplog
):
    path = min(kept())
    data, status = path.read_bytes(), path.stat()
    path.write_bytes(bytes(len(data) - 64) + data[-64:])  # the trailer is not changed
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as if nobody had written to it
    warm.read()
    warm.read_until_warm()
    server.asked.clear()
    assert warm.read(3) == 0
    assert not server.asked
    told = [each.getMessage() for each in caplog.records if "changed on the disk" in each.message]
    begin, end = path.name.split("-")
    assert len(told) == 1, told
    assert told[0].startswith(f"bytes {begin} to {end} of http://")
    assert path.read_bytes() == data
