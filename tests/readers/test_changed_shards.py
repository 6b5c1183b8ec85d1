"""Shards that are written to under an open reader: an error, and never a sample of two files."""

import io
import os
import tarfile
from functools import partial

import numpy as np
import pytest

from lightning_shards.errors import DamagedShardError, IndexMismatchError, SampleError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.recipe import Recipe, ShardSource
from lightning_shards.samples.fields import Field
from lightning_shards.samples.generators import SampleSeeds
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.tables import TableStore, build_tables

FIELDS = (Field("text", ("txt",), "raw"), Field("blob", ("bin",), "raw"))
SAMPLES = 8
SIZE = 20_000


def pack(path, letter, *, is_turned=False):
    """A shard whose bytes are all one letter; turned, it has the members in the other order."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(SAMPLES):
            members = [("txt", letter * 30), ("bin", letter * SIZE)]
            for suffix, content in reversed(members) if is_turned else members:
                info = tarfile.TarInfo(f"{number:03}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def shift_time(path):
    """A file system's clock may stand still for some ms."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


def index_of(*paths):
    index = load_index(list(map(str, paths)), cache=CacheFolder(paths[0].parent / "cache"))
    build_tables(index.urls, TableStore(CacheFolder(paths[0].parent / "cache")))
    return index


def columns(shards, ids, spans):
    recipe, epochs = Recipe(FIELDS), EpochSchedule(SAMPLES, 2, "drop")
    source = ShardSource(index=ShardIndex((), None), epochs=epochs, seed=0, recipes=(recipe,))
    reader, keyed = BatchReader(shards, source, StageClock()), SampleSeeds(0, 0)
    reader.look_up(np.array(ids), [range(*span) for span in spans], [recipe.keyed(keyed)])
    return reader


def source_of(path, **settings):
    index = index_of(path)
    return IndexedSource(
        index=index,
        epochs=EpochSchedule(SAMPLES, 2, "drop"),
        order=SampleOrder(index.counts, 0, "sequential"),
        seed=0,
        recipes=(Recipe(FIELDS),),
        cache=CacheFolder(path.parent / "cache"),
        **settings,
    )


def test_members_are_not_read_at_the_offsets_of_a_shard_that_was_opened_again(tmp_path):
    """Few may be open: it is closed after the lookup, and another one when it is read."""
    paths = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for path in paths:
        pack(path, b"a")
    with OpenShards(index_of(*paths), CacheFolder(tmp_path / "cache"), limit=1) as shards:
        made = columns(shards, [(0, 2), (1, 2)], [(0, 1), (1, 2)])
        pack(paths[0], b"b", is_turned=True)
        shift_time(paths[0])
        with pytest.raises(SampleError):
            made.batch(0)
        assert made.batch(1)


def test_a_write_between_two_reads_of_one_shard_spoils_both(tmp_path, monkeypatch):
    """What was read before the write is asked for behind it: the first piece is no sample's."""
    path = tmp_path / "0.tar"
    pack(path, b"a")
    with OpenShards(index_of(path), CacheFolder(tmp_path / "cache")) as shards:
        made = columns(shards, [(0, 0), (0, SAMPLES - 1)], [(0, 2)])
        calls = []

        def written_behind(plain, *call):
            read = plain(*call)
            if not calls:
                pack(path, b"b")
                shift_time(path)
            calls.append(call)
            return read

        monkeypatch.setattr(os, "pread", partial(written_behind, os.pread))
        monkeypatch.setattr(os, "preadv", partial(written_behind, os.preadv))
        with pytest.raises(SampleError):
            made.batch(0)
        assert calls


@pytest.mark.parametrize("max_bad", [None, 100], ids=["raise", "substitute"])
def test_the_indexed_reader_says_that_a_shard_changed(tmp_path, max_bad):
    """It is no bad sample: all that is known of the shard is of another one."""
    path = tmp_path / "0.tar"
    pack(path, b"a")
    source = source_of(path, max_bad=max_bad)
    batches = source.batches(Place(), Cursor())
    assert next(batches)
    pack(path, b"b")
    shift_time(path)
    with pytest.raises(IndexMismatchError, match="changed since it was indexed"):  # noqa: PT012 any of them
        for _ in range(SAMPLES):
            assert next(batches).batch["blob"] == [b"a" * SIZE] * 2


@pytest.mark.parametrize("max_bad", [None, SAMPLES], ids=["raise", "substitute"])
def test_the_stream_reader_gives_no_sample_of_two_files(tmp_path, make_source, max_bad):
    path = tmp_path / "0.tar"
    pack(path, b"a")
    fields = {"text": "txt", "blob": "bin"}
    decode = dict.fromkeys(fields, "raw")
    source = make_source([str(path)], sampling="sequential", fields=fields, decode=decode,
                         max_bad=max_bad)  # fmt: skip
    batches = source.batches(Place(), Cursor())
    served = [next(batches)]
    pack(path, b"b")
    shift_time(path)
    if max_bad is None:
        with pytest.raises(DamagedShardError, match="changed while it was read"):
            next(batches)
        return
    served += [next(batches) for _ in range(SAMPLES // 2 - 1)]
    for made in served:
        assert set(made.batch["blob"]) == {b"a" * SIZE}
    assert sum(len(made.bad) for made in served) == SAMPLES - 2
