"""`pack` and `reshard` do not write to where they read: a next run would read its shards, too."""

from pathlib import Path

import pytest

from lightning_shards.shards.tar.tar_bytes import read_samples
from lightning_shards.tools import pack, reshard
from tests.tools.conftest import contents, write_samples


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


@pytest.fixture
def refused(given, tmp_path, capsys):
    """Runs a tool, which must refuse and change no file; gives its one line."""

    def call(tool, *arguments):
        before = contents(tmp_path)
        with pytest.raises(SystemExit) as ended:
            tool.main([*map(str, arguments), *given])
        assert ended.value.code == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        assert contents(tmp_path) == before
        return captured.err

    return call


# --- folders


@pytest.mark.parametrize("out", [".", "shards/train", "../photos/new"])
@pytest.mark.parametrize("folder", [".", "../photos"])
def test_output_in_the_folder_of_the_files_is_refused(refused, files, folder, out):
    line = refused(pack, folder, "--out", out)
    assert f"pack: {Path(out)} is in {files}, where samples are read, and a next run would" in line
    assert line.endswith("name another output folder\n")


def test_output_beside_and_above_the_folder_is_written(files, given, tmp_path, capsys):
    for out in (tmp_path / "photos2", tmp_path):
        for _ in range(2):
            pack.main([str(files), "--out", str(out), *given])
        assert capsys.readouterr().out.splitlines()[-1].endswith(" 1")


# --- tars


@pytest.mark.parametrize("tool", [pack, reshard], ids=["pack", "reshard"])
def test_output_in_the_folder_of_the_tars_is_refused(refused, shards, tmp_path, monkeypatch, tool):
    monkeypatch.chdir(tmp_path)
    line = refused(tool, "data/*.tar", "--out", "data")
    assert f": data is in {shards}, where samples are read" in line
    assert "name another output folder" in line


def test_folder_below_that_of_the_tars_is_written(shards, given, tmp_path):
    reshard.main([str(shards / "*.tar"), "--out", str(shards / "new"), *given])
    [path] = (shards / "new").glob("*.tar")
    assert len(list(read_samples(str(path)))) == 5
