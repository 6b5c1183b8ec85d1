"""A run goes on with its finished shards, and believes none that other settings gave."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from lightning_shards.dataprep.finished import FinishedShards
from lightning_shards.dataprep.tar_writer import write_shard
from lightning_shards.dataprep.writer import ShardWriter
from lightning_shards.errors import ConfigError
from lightning_shards.shards.patterns import expand_urls

PREFIXES = {"train": "train", "val": "val"}
NAME = "train-000000.tar"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def begin(out, prefixes=PREFIXES, **changed):
    return FinishedShards(out, {"samples": 3} | changed, prefixes)


@pytest.fixture
def begun(out):
    """A folder with one shard that is noted as finished."""
    with closing(begin(out)) as finished:
        shard = write_shard(out / "train" / NAME, [("0", [("cls", b"1")])])
        finished.note("train", shard)
    return shard


def test_a_noted_shard_is_known_to_the_next_run(out, begun):
    with closing(begin(out)) as finished:
        assert finished.written("train", NAME) == begun
        assert finished.written("val", NAME) is None


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_shard_that_is_not_as_it_was_is_written_again(out, begun, is_gone):
    path = out / "train" / NAME
    if is_gone:
        path.unlink()
    else:
        os.truncate(path, begun.size_bytes - 512)
    with closing(begin(out)) as finished:
        assert finished.written("train", NAME) is None


def test_other_settings_are_refused_by_name(out, begun):
    with pytest.raises(ConfigError, match=r"\(samples was 3 and is now 4\); go on with the old"):
        begin(out, samples=4)


@pytest.mark.parametrize("name", ["train/train-000007.tar", "val/wids.json"])
def test_files_of_others_are_refused(out, name):
    (out / name).parent.mkdir(parents=True)
    (out / name).write_bytes(b"precious")
    with pytest.raises(ConfigError, match=r"not from a run with these settings \(no run is noted"):
        begin(out)


def test_a_run_beside_another_one_is_refused(out):
    with closing(begin(out)), pytest.raises(ConfigError, match="another run is writing to"):
        begin(out)
    begin(out).close()


@pytest.mark.parametrize("name", ["a b", "h#1", "co:lon", "s3:x", "\udce9", "pipe:ls", ".hidden"])
def test_the_pattern_of_shards_reads_back(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for folder, shards in ((tmp_path / name, 1), (Path(f"{name}2"), 2)):
        with ShardWriter(folder, max_samples=1, cache_dir=tmp_path / "cache") as writer:
            for sample in range(shards):
                writer.write({"__key__": str(sample), "cls": b"1"})
        named = [Path(url) for url in expand_urls(writer.urls)]
        assert named == [folder / f"shard-{number:06d}.tar" for number in range(shards)]
