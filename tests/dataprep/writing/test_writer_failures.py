"""What `ShardWriter` leaves after a failure, and what it does not touch in a folder of others."""

from itertools import count
from pathlib import Path

import pytest

from lightning_shards.dataprep.tar_writer import TarWriter
from lightning_shards.dataprep.writer import ShardWriter
from lightning_shards.errors import ConfigError
from lightning_shards.shards.patterns import expand_urls
from tests.dataprep.writing.conftest import SAMPLES
from tests.tools.conftest import seen


def test_a_full_disk_or_an_error_leaves_whole_shards_and_no_index(tmp_path, write, monkeypatch):
    put, calls = TarWriter._put, count()

    def fill_up(self, data):
        if next(calls) == 46:  # within a sample of the second shard
            raise OSError(28, "No space left on device")
        put(self, data)

    monkeypatch.setattr(TarWriter, "_put", fill_up)
    with pytest.raises(OSError, match="No space"):
        write()
    assert not list((tmp_path / "out").glob(".*.part"))
    assert list(seen(tmp_path / "out")) == ["shard-000000.tar"]
    write()
    write(folder="undisturbed")
    assert seen(tmp_path / "out") == seen(tmp_path / "undisturbed")


def test_a_finished_folder_is_not_touched_by_a_second_try(tmp_path, write):
    write()
    before = seen(tmp_path / "out")
    with pytest.raises(ConfigError, match="finished data set"):
        write()
    assert seen(tmp_path / "out") == before


# --- folders


@pytest.mark.parametrize("name", ["shard-000007.tar", "wids.json"])
def test_files_of_others_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(ConfigError, match=r"not from a run with these settings \(no run is noted"):
        ShardWriter(tmp_path)


def test_a_run_beside_another_one_is_refused(tmp_path):
    with ShardWriter(tmp_path, cache_dir=tmp_path / "cache") as writer:
        writer.write({"__key__": "a", "cls": 1})
        with pytest.raises(ConfigError, match="another run is writing to"):
            ShardWriter(tmp_path)


@pytest.mark.parametrize("name", ["a b", "h#1", "co:lon", "s3:x", "\udce9", "pipe:ls", ".hidden"])
def test_the_pattern_of_shards_reads_back(tmp_path, write, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for folder, shards in ((tmp_path / name, 1), (Path(f"{name}2"), 2)):
        writer = write(SAMPLES[:shards], folder=folder, max_samples=1)
        named = [Path(url) for url in expand_urls(writer.urls)]
        assert named == [folder / f"shard-{number:06d}.tar" for number in range(shards)]
