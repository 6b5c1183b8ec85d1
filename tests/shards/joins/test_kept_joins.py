"""What is kept of a join: made once, in parts, whole or not at all, and again when it must be."""

import logging
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_shards import SplitConfig
from lightning_shards.errors import ConfigError, StateError
from lightning_shards.shards.joins import kept_file, kept_joins
from lightning_shards.shards.private_files import CacheFolder

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

    def made(table=table, urls=urls, sampling="sequential", **more):
        split = SplitConfig(urls, sampling=sampling, join={"t": str(table)}, remainder="balanced")
        return make_module(split, **more)

    return made


def values(module):
    loader = module.loader("train", rank=0, world_size=1)
    return [text for batch in loader for text in batch["t"]]


def kept_files(tmp_path):
    return sorted((tmp_path / "cache" / "joins").glob("*.join"))


EXPECTED = [f"value {number}" for number in range(NUM)]


@pytest.fixture
def count_builds(monkeypatch):
    """How often a join is made in this process."""
    builds, write = [], kept_joins.write_join

    def counted(*given):
        builds.append(given[1])
        write(*given)

    monkeypatch.setattr(kept_joins, "write_join", counted)
    return builds


def test_a_join_is_made_once(make, count_builds):
    for _ in range(2):
        make().source("train").prepare()
        assert values(make()) == EXPECTED
    assert count_builds == ["t"]


@pytest.mark.parametrize("seed", [7, 8])
def test_random_keys_find_their_rows(seed, tmp_path, write_tar, make_module):
    """Keys that repeat over shards, rows without samples, samples without rows."""
    draws = random.Random(seed)
    shards = [draws.sample(range(60), draws.randrange(20)) for _ in range(6)]
    urls = [
        str(
            write_tar(
                tmp_path / f"{n}.tar", [(f"k{key}.cls", b"1") for key in keys] or [("r", b"")]
            )
        )
        for n, keys in enumerate(shards)
    ]
    rows = draws.sample(range(90), 45)
    columns = {"__key__": [f"k{row}" for row in rows], "t": [bytes([row]) * row for row in rows]}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=4)
    split = SplitConfig(urls, sampling="sequential", join={"t": str(tmp_path / "t.parquet")})
    module = make_module(split, batch_size=1)
    expected = [bytes([key]) * key if key in rows else None for keys in shards for key in keys]
    assert values(module) == expected


def equal_at_the_ends(number):
    return bytes(5000) + bytes([number]) + bytes(5000)


@pytest.mark.parametrize("column", ["texts", "numbers", "bytes", "long bytes"])
def test_a_value_that_repeats_is_kept_once(column, make, tmp_path):
    """Of rows that are read together, those without a value among them."""
    kinds = {"texts": "class {}".format, "numbers": float, "bytes": lambda n: bytes([n]) * 100}
    kinds["long bytes"] = equal_at_the_ends
    repeated = [None if number == 4 else kinds[column](number % 3) for number in range(NUM)]
    keys = [f"{number:06d}" for number in reversed(range(NUM))]
    values_of_rows = pa.array(list(reversed(repeated)))
    parquet.write_table(pa.table({"__key__": keys, "t": values_of_rows}), tmp_path / "r.parquet")
    assert values(make(tmp_path / "r.parquet", batch_size=1)) == repeated
    (kept,) = kept_files(tmp_path)
    opened = kept_file.open_kept_join(kept, CacheFolder(tmp_path / "cache"))
    assert opened.facts.num_values == 3
    sizes = {"texts": 7, "numbers": 8, "bytes": 100, "long bytes": 10_001}
    assert opened.facts.data_bytes == 3 * sizes[column]


def test_what_a_build_costs_is_said_and_drawn(make, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    drawn, whole = [], kept_file.rows_bar

    @contextmanager
    def watched(verb, total):
        drawn.append([verb, total, 0])
        with whole(verb, total):
            yield lambda rows: drawn[-1].__setitem__(2, drawn[-1][2] + rows)

    monkeypatch.setattr(kept_file, "rows_bar", watched)
    make().source("train").prepare()
    assert drawn == [["join 't'", 3 * NUM, 3 * NUM]]  # keys of samples and rows, and values
    (line,) = [text for text in caplog.messages if "matched in" in text]
    assert line.startswith(f"join 't': {NUM} rows and {NUM} samples matched in ")


DAMAGES = {
    "empty": lambda data: data[:0],
    "cut": lambda data: data[:-1],
    "cut at the start": lambda data: data[:50],
    "longer": lambda data: data + b"1",
    "a value": lambda data: data.replace(b"value 3", b"value 4"),
    "a slot": lambda data: data[:-300] + bytes([data[-300] ^ 1]) + data[-299:],
    "the counts": lambda data: data.replace(b'"num_values"', b'"num_valuez"'),
    "the magic": lambda data: b"X" + data[1:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_made_again(damage, make, tmp_path, caplog):
    make().source("train").prepare()
    (path,) = kept_files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    make().source("train").prepare()
    assert path.read_bytes() == whole
    assert [text for text in caplog.messages if "join 't' is made again" in text]


def test_shards_that_were_written_again_are_matched_again(make, pack_shards, tmp_path, write_tar):
    """Without a word: the counts are the same, and the keys stand in another order."""
    assert values(make()) == EXPECTED
    path = tmp_path / "shards" / "shard-000001.tar"
    write_tar(path, [(f"{key:06d}.cls", b"1") for key in (6, 4, 3, 5)])
    assert values(make()) == [*EXPECTED[:3], *(f"value {n}" for n in (6, 4, 3, 5)), *EXPECTED[7:]]


def test_a_changed_table_is_read_anew_and_a_moved_one_is_not(make, table, tmp_path, count_builds):
    assert values(make()) == EXPECTED
    moved = tmp_path / "elsewhere" / "named.parquet"
    moved.parent.mkdir()
    table.rename(moved)
    assert values(make(moved)) == EXPECTED
    assert len(count_builds) == 1
    columns = parquet.read_table(moved).to_pydict()
    columns["t"] = [text.upper() for text in columns["t"]]
    parquet.write_table(pa.table(columns), moved)
    assert values(make(moved)) == [text.upper() for text in EXPECTED]


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

    monkeypatch.setattr(kept_file, "match", fail)
    message = rf"join 't': matching {NUM} samples with {NUM} rows takes 0.0 GB of memory, which is"
    with pytest.raises(ConfigError, match=message):
        make().source("train").prepare()


def test_threads_that_need_a_join_at_once_make_it_once(make, count_builds):
    modules = [make() for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(values, modules)) == [EXPECTED] * 6
    assert count_builds == ["t"]


PROGRAM = """
import sys
from lightning_shards.shards.index import load_index
from lightning_shards.shards.joins.finding import JoinedShards, find_join
from lightning_shards.shards.joins.kept_joins import prepare_joins
from lightning_shards.shards.joins.settings import join_settings
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import expand_urls
cache = CacheFolder(sys.argv[3])
index = load_index(expand_urls(sys.argv[1]), cache=cache)
joins = tuple(find_join(each, cache) for each in join_settings({"t": sys.argv[2]}))
def prepare():
    prepare_joins([JoinedShards(joins, index)], cache, TableStore(cache))
"""
"""It needs no torch, which takes seconds to import and whose memory would hide that of a build."""

STOPPED = """
from lightning_shards.shards.joins import kept_file
whole = kept_file._write_values
def stop(*given):
    stops = whole(*given)
    print("values are written", flush=True)
    input()
    return stops
kept_file._write_values = stop
prepare()
"""


@pytest.mark.ddp
def test_a_build_that_is_killed_leaves_nothing_wrong(make, tmp_path, table):
    command = [sys.executable, "-c", PROGRAM + STOPPED]
    command += [f"{tmp_path}/shards/*.tar", str(table), str(tmp_path / "cache")]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout.readline() == "values are written\n"
        folder = tmp_path / "cache" / "joins"
        assert [path for path in folder.iterdir() if path.is_dir()]
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert not kept_files(tmp_path)
    assert values(make()) == EXPECTED
    left = sorted(path.suffix for path in folder.iterdir())
    assert left == [".join", ".json", ".lock"]


MEASURED = """
def peak_kib():  # ru_maxrss would begin with that of the process that started this one
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
import pyarrow.parquet
before = peak_kib()
prepare()
print(before // 1024, peak_kib() // 1024)
"""


def test_the_memory_of_a_build_does_not_grow_with_the_table(tmp_path, write_tar):
    """Rows of 10 MB, no two of them alike."""
    rows, random_bytes = 30, np.random.default_rng(0).bytes
    column = pa.array([random_bytes(10_000_000) for _ in range(rows)])
    # pyarrow would write one page of 300 MB
    options = {"use_dictionary": False, "write_batch_size": 1}
    write_tar(tmp_path / "0.tar", [(f"{n:06d}.cls", b"1") for n in range(rows)])
    table = pa.table({"__key__": [f"{n:06d}" for n in range(rows)], "t": column})
    parquet.write_table(table, tmp_path / "t.parquet", **options)
    command = [sys.executable, "-c", PROGRAM + MEASURED, str(tmp_path / "0.tar")]
    command += [str(tmp_path / "t.parquet"), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    before, peak = map(int, done.stdout.split())
    (path,) = kept_files(tmp_path)
    assert path.stat().st_size > 290_000_000
    path.unlink()
    assert peak - before < 170, done.stdout
