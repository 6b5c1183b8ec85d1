"""Files are there as a whole or not at all, and what a killed program left does no harm."""

import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.shards.atomic import new_file, replace_file


def test_what_a_killed_program_left_is_overwritten(tmp_path):
    (tmp_path / ".a.json.part").write_bytes(b"x" * 1000)
    replace_file(tmp_path / "a.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "new"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="full"), new_file(path) as file:  # noqa: PT012 half of it
        file.write(b"half")
        raise ValueError("the disk is full")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_nothing_is_there_before_the_end(tmp_path):
    with new_file(tmp_path / "a.json") as file:
        file.write(b"all")
        file.flush()
        assert not (tmp_path / "a.json").exists()
    assert (tmp_path / "a.json").read_bytes() == b"all"


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    with new_file(tmp_path / "a.json") as file:
        file.write(b"first")
        with pytest.raises(ConfigError, match="written by another program"):
            replace_file(tmp_path / "a.json", "second")
    assert (tmp_path / "a.json").read_bytes() == b"first"


def test_equal_contents_are_not_written_again(tmp_path):
    replace_file(tmp_path / "a.json", "same")
    before = (tmp_path / "a.json").stat()
    replace_file(tmp_path / "a.json", b"same")
    assert (tmp_path / "a.json").stat() == before


def test_who_reads_the_old_file_goes_on_reading_it(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old, and longer")
    with path.open() as reader:
        replace_file(path, "new")
        assert reader.read() == "old, and longer"
    assert path.read_text() == "new"
