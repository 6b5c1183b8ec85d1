"""Names that are not UTF-8, as files may have them, end no tool after its work was done."""

import os

import pytest

from lightning_shards.shards.tar.tar_bytes import read_samples
from lightning_shards.tools import index, info, pack, reshard, show, verify
from tests.tools.conftest import write_members, write_samples

LATIN = os.fsdecode(b"caf\xe9")
SHOWN = r"caf\udce9"


@pytest.fixture
def run(tmp_path, capsys):
    """Runs a tool here; gives its exit status, and what it printed on either stream."""

    def call(tool, *arguments):
        status = 0
        try:
            tool.main(
                [*map(str, arguments), "--cache-dir", str(tmp_path / "cache"), "--processes", "1"]
            )
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return call


@pytest.fixture
def shard(tmp_path):
    """A shard with a sample whose key is not UTF-8, and one of a plain name."""
    return write_members(tmp_path / "k.tar", [(f"{LATIN}.cls", b"1"), ("b.cls", b"2")])


def test_tools_read_and_write_in_folders_of_any_name(run, tmp_path):
    folder = write_samples(tmp_path / LATIN, [3])
    tar = folder / "train-000000.tar"
    formats = "wids,members,sizes,dali"
    assert run(index, tar, "--format", formats)[0] == 0
    for tool in (verify, info):
        assert run(tool, tar)[0] == 0
    assert run(show, tar, "--output", folder / "sheet.png")[0] == 0
    status, text = run(reshard, tar, "--out", tmp_path / f"{LATIN} 2")
    assert status == 0
    assert f"{SHOWN} 2/shard-000000.tar" in text
    status, text = run(pack, tmp_path / "nowhere" / LATIN, "--out", tmp_path / "x")
    assert status == 2
    assert SHOWN in text


def test_what_is_packed_into_a_folder_of_any_name_is_told(run, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"{LATIN}.cls").write_bytes(b"1")
    status, text = run(pack, tmp_path / "in", "--no-classes", "--out", tmp_path / LATIN)
    assert status == 0
    assert f"{SHOWN}/shard-000000.tar" in text
    [sample] = read_samples(str(tmp_path / LATIN / "shard-000000.tar"))
    assert sample["__key__"] == "caf%E9"


def test_dalis_index_has_the_bytes_of_names(run, shard):
    assert run(index, shard, "--format", "dali", "--force")[0] == 0
    lines = shard.with_suffix(".idx").read_bytes().splitlines()
    assert lines[1].endswith(b" 1 caf\xe9.cls")
