"""Shards that are written to under an open reader: an error, and never a sample of two files."""

import os
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import pytest

from lightning_shards.errors import DamagedShardError, IndexMismatchError, SampleError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.recipe import Recipe
from lightning_shards.samples.fields import Field
from lightning_shards.samples.generators import SampleSeeds
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import CacheFolder

SAMPLES = 8
SIZE = 20_000


@pytest.fixture
def pack(write_tar):
    """Writes a shard whose bytes are all one letter; turned, its members come the other way."""

    def packed(path, letter, *, is_turned=False):
        members = [
            member
            for number in range(SAMPLES)
            for member in ((f"{number:03}.txt", letter * 30), (f"{number:03}.bin", letter * SIZE))
        ]
        write_tar(path, members[::-1] if is_turned else members)
        stat = path.stat()  # a file system's clock may stand still for some ms
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + is_turned + ord(letter)))

    return packed


def source_of(*paths, **settings):
    cache = CacheFolder(paths[0].parent / "cache")
    index = load_index(list(map(str, paths)), cache=cache)
    source = IndexedSource(
        index=index,
        epochs=EpochSchedule(SAMPLES, 2, "drop"),
        order=SampleOrder(index.counts, 0, "sequential"),
        seed=0,
        recipes=(Recipe((Field("text", ("txt",), "raw"), Field("blob", ("bin",), "raw"))),),
        cache=cache,
        **settings,
    )
    source.prepare()
    return source


def looked_up(source, shards, *batches):
    """Makes batches of these samples."""
    reader, stops = BatchReader(shards, source, StageClock()), accumulate(map(len, batches))
    spans = list(pairwise([0, *stops]))
    reader.look_up(np.concatenate(batches), spans, [source.recipes[0].keyed(SampleSeeds(0, 0))])
    return reader


def test_members_are_not_read_at_the_offsets_of_a_shard_that_was_opened_again(tmp_path, pack):
    """Few may be open: it is closed after the lookup, and another one when it is read."""
    paths = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for path in paths:
        pack(path, b"a")
    source = source_of(*paths)
    with OpenShards(source.index, source.cache, limit=1) as shards:
        made = looked_up(source, shards, [(0, 2)], [(1, 2)])
        pack(paths[0], b"b", is_turned=True)
        with pytest.raises(SampleError):
            made.batch(0)
        assert made.batch(1)


def test_a_write_between_two_reads_of_one_shard_spoils_both(tmp_path, pack, monkeypatch):
    """What was read before the write is asked for behind it: the first piece is no sample's."""
    path = tmp_path / "0.tar"
    pack(path, b"a")
    source, calls = source_of(path), []
    with OpenShards(source.index, source.cache) as shards:
        made = looked_up(source, shards, [(0, 0), (0, SAMPLES - 1)])

        def written_behind(plain, *call):
            read = plain(*call)
            if not calls:
                pack(path, b"b")
            calls.append(call)
            return read

        monkeypatch.setattr(os, "preadv", partial(written_behind, os.preadv))
        with pytest.raises(SampleError):
            made.batch(0)
    assert len(calls) == 2


@pytest.mark.parametrize("max_bad", [None, 100], ids=["raise", "substitute"])
def test_the_indexed_reader_says_that_a_shard_changed(tmp_path, pack, max_bad):
    """It is no bad sample: all that is known of the shard is of another one."""
    path = tmp_path / "0.tar"
    pack(path, b"a")
    batches = source_of(path, max_bad=max_bad).batches(Place(), Cursor())
    assert next(batches)
    pack(path, b"b")
    with pytest.raises(IndexMismatchError, match="changed since it was indexed"):  # noqa: PT012 any of them
        for _ in range(SAMPLES):
            assert next(batches).batch["blob"] == [b"a" * SIZE] * 2


@pytest.mark.parametrize("max_bad", [None, SAMPLES], ids=["raise", "substitute"])
def test_the_stream_reader_gives_no_sample_of_two_files(tmp_path, pack, make_source, max_bad):
    path = tmp_path / "0.tar"
    pack(path, b"a")
    fields = {"text": "txt", "blob": "bin"}
    decode = dict.fromkeys(fields, "raw")
    source = make_source([str(path)], sampling="sequential", fields=fields, decode=decode,
                         max_bad=max_bad)  # fmt: skip
    batches = source.batches(Place(), Cursor())
    served = [next(batches)]
    pack(path, b"b")
    if max_bad is None:
        with pytest.raises(DamagedShardError, match="changed while it was read"):
            next(batches)
        return
    served += [next(batches) for _ in range(SAMPLES // 2 - 1)]
    for made in served:
        assert set(made.batch["blob"]) == {b"a" * SIZE}
    assert sum(len(made.bad) for made in served) == SAMPLES - 2
