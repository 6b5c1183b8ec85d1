"""What is compared of the member tables of one shard."""

import io
import tarfile
from dataclasses import replace

import pytest

from lightning_shards.dataprep.inspection.listed_shards import have_same_extents
from lightning_shards.shards.members import scan_members


@pytest.fixture
def table(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 7
            tar.addfile(member, io.BytesIO(b"content"))
    return scan_members(tmp_path / "a.tar")


def test_other_names_change_no_extent(table):
    assert have_same_extents(table, replace(table, suffixes=("cls",)))


@pytest.mark.parametrize("array", ["offsets", "sizes"])
def test_members_elsewhere_or_of_other_sizes_have_other_extents(table, array):
    moved = getattr(table, array).copy()
    moved[-1] -= 1
    assert not have_same_extents(table, replace(table, **{array: moved}))
