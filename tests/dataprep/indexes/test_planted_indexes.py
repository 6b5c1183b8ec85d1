"""What is planted beside shards leads no tool to another place, and is handed on to nobody."""

import json
import os

import pytest

from lightning_shards.dataprep.indexes.cards import write_card
from lightning_shards.dataprep.indexes.energon import write_energon
from lightning_shards.errors import FileAccessError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore
from lightning_shards.tools import index, verify


@pytest.fixture
def folder(tmp_path, write_shards):
    write_shards([3, 4], tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def home(tmp_path):
    """A folder of the user, elsewhere."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "precious").write_text("years of work")
    return folder


@pytest.fixture
def run(tmp_path, folder, capsys):
    """Runs `index` over the shards; gives its exit status and what it said on stderr."""

    def call(*formats):
        arguments = [f"{folder}/*.tar", "--format", ",".join(formats), "--processes", "1"]
        status = 0
        try:
            index.main([*arguments, "--cache-dir", str(tmp_path / "cache")])
        except SystemExit as ended:
            status = ended.code
        return status, capsys.readouterr().err

    return call


FILES = {"wids": "wids.json", "sizes": "sizes.json", "dali": "000.idx", "energon": "000.tar.idx"}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("name", ["{}", ".{}.part"])
def test_link_in_the_place_of_an_index_leads_nowhere(run, folder, home, kind, name):
    planted = folder / name.format(FILES[kind])
    planted.symlink_to(home / "precious")
    assert run(kind)[0] == 0
    assert (home / "precious").read_text() == "years of work"
    assert not (folder / FILES[kind]).is_symlink()


def test_folder_of_energon_that_is_a_link_is_refused(folder, home, tmp_path):
    (folder / ".nv-meta").symlink_to(home)
    store = TableStore(CacheFolder(tmp_path / "cache"))
    with pytest.raises(FileAccessError, match=r"\.nv-meta is a link to .*/home"):
        write_energon(folder, {"000.tar": 3}, {"train": ["000.tar"]}, store)
    assert [path.name for path in home.iterdir()] == ["precious"]


@pytest.mark.parametrize("name", ["wids.json", "sizes.json", "README.md", ".nv-meta/split.yaml"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_the_place_of_an_index_is_an_error_at_once(run, folder, name, make):
    (folder / ".nv-meta").mkdir()
    make(folder / name)
    status, said = run("wids", "sizes", "energon", "card")
    assert status == 2
    assert f"{name} is a f" in said


def test_link_in_the_place_of_a_card_is_no_reason_to_overwrite_its_target(folder, home):
    (folder / "README.md").symlink_to(home / "gone")
    write_card(folder, {"train": ["000.tar"]}, {"000.tar": 3})
    assert not (home / "gone").exists()


def test_hostile_sizes_are_not_handed_on(run, folder, home):
    hostile = {"../home/precious": 7, str(home / "precious"): 7, "000.tar": 9, "allow_unsafe": 1}
    (folder / "sizes.json").write_text(json.dumps(hostile))
    assert run("sizes")[0] == 0
    assert json.loads((folder / "sizes.json").read_text()) == {"000.tar": 3, "001.tar": 4}


@pytest.mark.parametrize("name", ["000.tar", ".000.tar.part", "repair.json", "repair.json.part"])
def test_link_in_the_place_of_a_repaired_shard_leads_nowhere(folder, home, tmp_path, capsys, name):
    data = bytearray((folder / "000.tar").read_bytes())
    data[1100] ^= 1  # in a header
    (folder / "000.tar").write_bytes(data)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / name).symlink_to(home / "precious")
    arguments = [f"{folder}/*.tar", "--repair", str(tmp_path / "saved"), "--processes", "1"]
    with pytest.raises(SystemExit) as ended:
        verify.main([*arguments, "--decode", "none", "--cache-dir", str(tmp_path / "cache")])
    is_free = name.startswith(".")  # nothing is written under this name
    assert ended.value.code == (1 if is_free else 2)
    assert ("wrote" in capsys.readouterr().out) is is_free
    assert (tmp_path / "saved" / name).is_symlink()
    assert (home / "precious").read_text() == "years of work"


def test_file_in_the_place_of_the_folder_of_repairs_is_told(folder, tmp_path, capsys):
    (folder / "000.tar").write_bytes((folder / "000.tar").read_bytes()[:3000])
    (tmp_path / "saved").touch()
    arguments = [f"{folder}/*.tar", "--repair", str(tmp_path / "saved"), "--processes", "1"]
    with pytest.raises(SystemExit):
        verify.main([*arguments, "--decode", "none", "--cache-dir", str(tmp_path / "cache")])
    assert "a file stands where a folder should be" in capsys.readouterr().err
