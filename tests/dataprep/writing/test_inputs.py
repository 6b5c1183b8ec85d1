"""Inputs that are no regular files, cannot be read or change meanwhile are an error, by name."""

import os

import pytest

from lightning_shards.dataprep.listing import list_folder
from lightning_shards.dataprep.packing import Packing
from lightning_shards.dataprep.rewriting import Edit, rewrite
from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.files import CacheFolder


def test_a_flat_folder_gives_pairs_without_classes(tmp_path):
    for name in ("1.jpg", "1.txt", "2.png", "2.txt"):
        (tmp_path / name).touch()
    listing = list_folder(str(tmp_path))
    found = {of.key: tuple(member.field for member in of.members) for of in listing.samples}
    assert found == {"1": ("jpg", "txt"), "2": ("png", "txt")}
    assert listing.classes == {}


# --- files that change after they were listed


@pytest.mark.parametrize("kind", ["transform", "keeps"])
def test_a_file_that_changes_meanwhile_gives_no_shard(tmp_path, kind):
    for name in ("first.a", "second.a"):
        (tmp_path / name).write_bytes(b"xx")

    def change_second(sample):
        os.utime(tmp_path / "second.a", (0, 0))
        return sample

    listing, cache = list_folder(str(tmp_path)), CacheFolder(tmp_path / "cache")
    edit = Edit(**{kind: change_second})
    with pytest.raises(DamagedShardError, match=r"second\.a was changed since it was listed"):
        rewrite(listing, Packing(max_samples=9), tmp_path / "out", edit, cache=cache)
    assert not list((tmp_path / "out").glob("*.tar"))
