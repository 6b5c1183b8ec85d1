"""Training from remote shards by way of the cache: the same batches, and few requests."""

import logging
import re
import threading
from collections import Counter
from contextlib import closing
from functools import partial
from itertools import islice, takewhile
from unittest.mock import ANY

import lightning.pytorch as pl
import pytest
from fault_server import Fault
from waiting import wait_for

from lightning_shards import DataThroughputMonitor
from lightning_shards.errors import DamagedShardError, IndexMismatchError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.remote import ahead
from lightning_shards.remote.ahead import PiecePlan, ShardTables
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.storage.schemes import Storages
from tests.callbacks.quiet_fits import OneWeight, quiet_trainer
from tests.remote.published import COUNTS, batches, content, module

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

WITHIN_S = 10
PIECES = 3  # whole shards: short runs that come side by side are one piece
ROOMY = {"cache_gib": 1}
SHARDS = range(len(COUNTS))


@pytest.fixture
def kept(tmp_path):
    """Gives the files of the pieces that are kept."""
    folder = tmp_path / "cache" / "pieces"
    return lambda: [path for path in folder.glob("*/*-*") if path.suffix != ".part"]


def stream_of(urls, tmp_path):
    """The batches of one rank, with room for all in the cache."""
    source = module(urls, tmp_path, loader=ROOMY, shuffle_run=0).source("train")
    return source.batches(Place(), Cursor())


def served(source, number, place=None, cursor=None):
    place, cursor = place or Place(), cursor or Cursor()
    return [content(each.batch) for each in islice(source.batches(place, cursor), number)]


def test_a_shard_that_was_replaced_between_runs_is_noticed_though_all_is_cached(
    published_shards, server, tmp_path, kept
):
    stream = stream_of(published_shards, tmp_path)
    next(stream)
    assert wait_for(lambda: len(kept()) == PIECES, WITHIN_S)
    stream.close()
    name = "data/shard-000001.tar"
    server.objects[name] = server.objects[name][::-1]
    again = stream_of(published_shards, tmp_path)
    with pytest.raises(IndexMismatchError, match=r"000001.*bytes of version"):
        list(islice(again, 999))


def two_blocks(urls, tmp_path):
    """The loader setting of a cache that holds two blocks of four samples, and no more."""
    need = run_need(module(urls, tmp_path, loader=ROOMY, shuffle_block=4))
    return {"cache_gib": (need.working_set_bytes + 1) / 2**30}


def run_need(data):
    return data.source("train").storages["*"].cache.need


def test_two_ranks_with_a_cache_of_two_blocks_get_what_local_shards_give_though_requests_fail(
    published_shards, local, server, tmp_path, kept
):
    loader = two_blocks(published_shards, tmp_path)
    assert run_need(module(published_shards, tmp_path, loader=loader, shuffle_block=4))
    remote = module(published_shards, tmp_path, loader=loader, shuffle_block=4)
    server.faults = [None, None, Fault("status", 503), None, None, Fault("cut", 9)] * 60
    assert batches(remote, epochs=6) == batches(module(local, tmp_path, shuffle_block=4), epochs=6)
    assert sum(path.stat().st_size for path in kept()) <= loader["cache_gib"] * 2**30


EPOCHS = 10


def test_a_cache_of_two_blocks_fetches_each_piece_once_an_epoch(published_shards, server, tmp_path):
    """And once more for the epoch that follows. All of an announcement is there at one time."""
    loader = two_blocks(published_shards, tmp_path)
    data = module(published_shards, tmp_path, "own", loader=loader, shuffle_block=4)
    source = data.source("train")
    given = source.index, source.cache, source.storages
    with closing(ShardTables(*given)) as tables, closing(Storages(source.storages)) as storages:
        at = source.order, source.epochs, Cursor(), Place()
        plan = PiecePlan(*at, source.index.urls, tables)
        storages.of(source.index.urls[0]).read_ranges([])  # the first batch comes before all pieces
        server.asked.clear()
        for block in takewhile(lambda block: block.turn < EPOCHS, plan.announcements()):
            assert wait_for(partial(storages.prefetch, block.reads), WITHIN_S)
    fetched = Counter(asked for asked in server.ranges() if asked[2])  # else for its version
    assert len(fetched) > 2
    assert max(fetched.values()) <= 1.1 * EPOCHS


class SentBytes(pl.Callback):
    """What a server sent in a fit but for its first batch, by the line at the end and by itself."""

    def __init__(self, server):
        self.server = server

    def on_train_start(self, trainer, pl_module):
        self.server.sent = 0
        self.server.asked.clear()

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 1:
            self.of_first = trainer.train_dataloader.times.fetched.fetched_bytes

    def on_train_end(self, trainer, pl_module):
        self.sent = self.server.sent - self.of_first


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.parametrize("split", [{"sampling": "sequential"}, {}], ids=["exactly", "cached"])
def test_the_line_at_the_end_of_a_fit_tells_what_the_server_sent(
    split, published_shards, server, tmp_path, caplog
):
    """Also what broke off. Workers do not tell what comes after their last batch."""
    caplog.set_level(logging.INFO)
    data = module(published_shards, tmp_path, loader=ROOMY, **split)
    server.faults = [None] * 12 + [Fault("cut", 99), None, Fault("cut", 9)]
    seen = SentBytes(server)
    trainer = quiet_trainer(tmp_path, [DataThroughputMonitor(), seen], max_epochs=4)
    trainer.fit(OneWeight(), data)
    told = float(re.search(r"fetched ([\d.e-]+) GB in", caplog.text)[1]) * 1e9
    assert told == pytest.approx(seen.sent, rel=0.02)
    times = trainer.train_dataloader.times
    assert times.fetched.requests == len(server.asked)
    assert times.fetched.repeated == 2
    assert 0 < times.stages["fetch"] == pytest.approx(times.fetched.wait_s)
    assert times.stages["fetch"] <= times.produce_s
    assert all(seconds >= 0 for seconds in times.stages.values())


def test_processes_of_a_node_fetch_each_table_once(published_shards, server, tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "_OTHERS_S", WITHIN_S)
    source, found = module(published_shards, tmp_path, cache="asked").source("train"), []
    given = source.index, CacheFolder(tmp_path / "tables"), source.storages
    both = [ShardTables(*given, (number, 2)) for number in (0, 1)]
    server.asked.clear()
    asking = [threading.Thread(target=lambda i=i: found.append([*i.each(SHARDS)])) for i in both]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(WITHIN_S)
    assert [[table.num_samples for table in tables] for tables in found] == [COUNTS] * 2
    assert sorted(server.ranges(".members")) == [
        (f"shard-{shard:06d}.tar.members", 0, ANY) for shard in SHARDS
    ]


BATCHES = 32


@pytest.fixture
def expected(local, tmp_path):
    return served(module(local, tmp_path, shuffle_run=0).source("train"), BATCHES)


class WrongAtFirst(dict[str, bytes]):
    """Objects of a server whose first answers hold other bytes of the same version and length."""

    wrong = 0

    def get(self, name, default=None):
        data = super().get(name, default)
        if data is None or not name.endswith(".tar") or not self.wrong:
            return data
        self.wrong -= 1
        return bytes(byte ^ 0x55 for byte in data)


@pytest.mark.parametrize("loader", [ROOMY, {"cache_gib": None}], ids=["cache", "default"])
def test_bytes_that_a_server_gave_wrong_once_are_fetched_again(
    loader, published_shards, expected, server, tmp_path, monkeypatch
):
    source = module(published_shards, tmp_path, loader=loader, shuffle_run=0).source("train")
    monkeypatch.setattr(server, "objects", WrongAtFirst(server.objects))
    assert served(source, 1) == expected[:1]
    server.objects.wrong = 1
    assert served(source, BATCHES) == expected
    assert not server.objects.wrong


def test_bytes_that_stay_wrong_are_an_error_that_names_the_member(
    published_shards, server, tmp_path, monkeypatch
):
    source = module(published_shards, tmp_path, loader=ROOMY, shuffle_run=0).source("train")
    monkeypatch.setattr(server, "objects", WrongAtFirst(server.objects))
    server.objects.wrong = 10**9
    with pytest.raises(DamagedShardError, match=r"shard-00000\d.tar.*crc32"):
        served(source, BATCHES)
