"""`pack` and `reshard` do not write to where they read: a next run would read its shards, too."""

from pathlib import Path

import pytest

from lightning_shards.shards.tar.tar_bytes import read_samples
from lightning_shards.tools import pack, reshard
from tests.tools.conftest import write_samples


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder of two classes, which is the folder of this process."""
    folder = tmp_path / "photos"
    for name in ("cat/0.txt", "dog/1.txt", "dog/2.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"text")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def shards(tmp_path):
    return write_samples(tmp_path / "data", [3, 2])


@pytest.fixture
def given(tmp_path):
    return ["--cache-dir", str(tmp_path / "cache"), "--processes", "1"]


# --- folders


@pytest.mark.parametrize("out", [".", "shards/train", "../photos/new"])
@pytest.mark.parametrize("folder", [".", "../photos"])
def test_output_in_the_folder_of_the_files_is_refused(refused_by, files, folder, out):
    line = refused_by(pack, folder, "--out", out)
    assert f"pack: {Path(out)} is in {files}, where samples are read, and a next run would" in line
    assert line.endswith("name another output folder\n")


# --- tars


@pytest.mark.parametrize("tool", [pack, reshard], ids=["pack", "reshard"])
def test_output_in_the_folder_of_the_tars_is_refused(
    refused_by, shards, tmp_path, monkeypatch, tool
):
    monkeypatch.chdir(tmp_path)
    line = refused_by(tool, "data/*.tar", "--out", "data")
    assert f": data is in {shards}, where samples are read" in line
    assert "name another output folder" in line


def test_folder_below_that_of_the_tars_is_written(shards, given, tmp_path):
    reshard.main([str(shards / "*.tar"), "--out", str(shards / "new"), *given])
    [path] = (shards / "new").glob("*.tar")
    assert len(list(read_samples(str(path)))) == 5
