"""Inputs that are no regular files, cannot be read or change meanwhile are an error, by name."""

import os

import pytest

from lightning_shards.dataprep.listing import Listing, list_folder
from lightning_shards.dataprep.packing import InputSample, Packing, whole_file
from lightning_shards.dataprep.rewriting import Edit, rewrite
from lightning_shards.errors import DamagedShardError, FileAccessError
from lightning_shards.shards.private_files import CacheFolder


def test_what_is_no_file_in_a_folder_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "0.txt")
    with pytest.raises(FileAccessError, match=r"0\.txt is a fifo"):
        list_folder(str(tmp_path))


def test_a_flat_folder_gives_pairs_without_classes(tmp_path):
    for name in ("1.jpg", "1.txt", "2.png", "2.txt"):
        (tmp_path / name).touch()
    listing = list_folder(str(tmp_path))
    found = {of.key: tuple(member.field for member in of.members) for of in listing.samples}
    assert found == {"1": ("jpg", "txt"), "2": ("png", "txt")}
    assert listing.classes == {}


# --- files that change after they were listed


@pytest.fixture
def samples(tmp_path):
    """Two files, each of which is a sample."""
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(b"xx")
    names = ("first", "second")
    return [InputSample(name, (whole_file("a", str(tmp_path / name)),)) for name in names]


def rewritten(path):
    """Other bytes in the same file, at a later time."""
    time = path.stat().st_mtime_ns + 1
    path.write_bytes(b"y" * path.stat().st_size)
    os.utime(path, ns=(time, time))


@pytest.mark.parametrize("kind", ["transform", "keeps"])
def test_a_file_that_changes_meanwhile_gives_no_shard(samples, tmp_path, kind):
    def change_second(sample):
        rewritten(tmp_path / "second")
        return sample

    cache = CacheFolder(tmp_path / "cache")
    edit = Edit(**{kind: change_second})
    with pytest.raises(DamagedShardError, match="second was changed since it was listed"):
        rewrite(Listing(samples), Packing(max_samples=9), tmp_path / "out", edit, cache=cache)
    assert not list((tmp_path / "out").glob("*.tar"))
