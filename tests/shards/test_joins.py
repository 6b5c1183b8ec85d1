"""What joins guarantee, in the names of their tests."""

import io
import random
import zlib

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_shards import SplitConfig
from lightning_shards.errors import ConfigError, IndexMismatchError, StateError
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.joins import kept
from lightning_shards.shards.joins.kept import look_at
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore
from tests.seams.fakes import example

COUNTS = [3, 4, 2]
NUM = sum(COUNTS)


@pytest.fixture
def table(tmp_path):
    """A table in which the value of sample i is "value i"."""
    path = tmp_path / "table.parquet"
    keys = random.Random(1).sample(range(NUM), NUM)
    columns = {"__key__": [f"{key:06d}" for key in keys], "t": [f"value {key}" for key in keys]}
    parquet.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def make(make_module, pack_shards, table):
    """Makes modules that join the table."""
    urls = pack_shards(COUNTS)

    def made(table=table, sampling="sequential"):
        split = SplitConfig(urls, sampling=sampling, join={"t": str(table)}, remainder="balanced")
        return make_module(split)

    return made


def values(module):
    loader = module.loader("train", rank=0, world_size=1)
    return [text for batch in loader for text in batch["t"]]


def kept_files(tmp_path):
    return sorted((tmp_path / "cache" / "joins").glob("*.arrow"))


EXPECTED = [f"value {number}" for number in range(NUM)]


def test_a_join_is_made_once_and_is_that_of_a_table_that_was_moved(make, table, tmp_path):
    assert values(make()) == EXPECTED
    (made,) = kept_files(tmp_path)
    number = made.stat().st_ino
    assert values(make(table.rename(tmp_path / "moved.parquet"))) == EXPECTED
    assert [path.stat().st_ino for path in kept_files(tmp_path)] == [number]


def test_random_keys_find_their_rows(tmp_path, write_tar, make_module):
    """Keys that repeat over shards, rows without samples, samples without rows."""
    draws = random.Random(7)
    shards = [draws.sample(range(60), draws.randrange(20)) for _ in range(6)]
    urls = []
    for number, keys in enumerate(shards):
        members = [(f"k{key}.cls", b"1") for key in keys] or [("r", b"")]
        urls.append(str(write_tar(tmp_path / f"{number}.tar", members)))
    rows = draws.sample(range(90), 45)
    columns = {"__key__": [f"k{row}" for row in rows], "t": [bytes([row]) * row for row in rows]}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=4)
    split = SplitConfig(urls, sampling="sequential", join={"t": str(tmp_path / "t.parquet")})
    module = make_module(split, batch_size=1)
    expected = [bytes([key]) * key if key in rows else None for keys in shards for key in keys]
    assert values(module) == expected


@pytest.mark.parametrize("size", [0, -1])
def test_a_file_that_is_cut_is_made_again(size, make, tmp_path, caplog):
    make().source("train").prepare()
    (path,) = kept_files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    make().source("train").prepare()
    assert path.read_bytes() == whole
    assert [text for text in caplog.messages if f"{path} is made again" in text]


def test_shards_that_were_written_again_are_matched_again(make, pack_shards, tmp_path, write_tar):
    """Without a word: the counts are the same, and the keys stand in another order."""
    assert values(make()) == EXPECTED
    path = tmp_path / "shards" / "shard-000001.tar"
    write_tar(path, [(f"{key:06d}.cls", b"1") for key in (6, 4, 3, 5)])
    assert values(make()) == [*EXPECTED[:3], *(f"value {n}" for n in (6, 4, 3, 5)), *EXPECTED[7:]]


def test_a_shard_that_changes_during_the_run_is_an_error(make, tmp_path, write_tar):
    source = make().source("train")
    store = TableStore(source.cache)
    values = source.joined[0].opened(source.cache, store)
    values.prepare()
    path = tmp_path / "shards" / "shard-000001.tar"
    values.require_same(1, store.table_of(path))
    write_tar(path, [(f"{key:06d}.cls", b"1") for key in (6, 4, 3, 5)])
    with pytest.raises(IndexMismatchError, match=r"shard-000001\.tar was replaced while"):
        values.require_same(1, store.table_of(path))


def test_a_changed_table_is_read_anew(make, table):
    assert values(make()) == EXPECTED
    columns = parquet.read_table(table).to_pydict()
    columns["t"] = [text.upper() for text in columns["t"]]
    parquet.write_table(pa.table(columns), table)
    assert values(make()) == [text.upper() for text in EXPECTED]


def test_a_checkpoint_refuses_a_changed_table_and_takes_a_moved_one(make, table, tmp_path):
    loader = make(sampling="shuffled").loader("train", rank=0, world_size=1)
    next(iter(loader))
    state = loader.state_dict()
    assert all(type(value) in (int, str) for value in state.values())
    moved = table.rename(tmp_path / "moved.parquet")
    make(moved, sampling="shuffled").loader("train", rank=0, world_size=1).load_state_dict(state)
    columns = parquet.read_table(moved).to_pydict() | {"t": ["another"] * NUM}
    parquet.write_table(pa.table(columns), moved)
    with pytest.raises(StateError, match="table of join 't' has changed since the checkpoint"):
        make(moved, sampling="shuffled").loader("train", rank=0, world_size=1).load_state_dict(
            state
        )


def test_a_table_that_does_not_fit_the_memory_is_an_error_that_says_so(make, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(kept, "table_keys", fail)
    message = rf"join 't': .* does not fit the memory, with the keys of {NUM} samples; take a machi"
    with pytest.raises(ConfigError, match=message):
        make().source("train").prepare()


def test_a_copy_of_a_remote_table_that_came_short_is_fetched_again(tmp_path):
    url, data = "dict://t.parquet", b"all of a table"
    storage = example("dict_storage").DictStorage({url: data})
    whole, storages = storage.open_stream, Storages({"dict": lambda: storage})
    storage.open_stream = lambda url: io.BytesIO(whole(url).read(3))
    cache = CacheFolder(tmp_path / "cache")
    with pytest.raises(IndexMismatchError, match=r"t\.parquet was replaced while the run looked"):
        look_at(url, storages, cache)
    storage.open_stream = whole
    assert look_at(url, storages, cache).crc32 == zlib.crc32(data)
