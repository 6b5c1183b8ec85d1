"""Files that are rewritten in place after they were listed are noticed while they are open."""

import gzip
import os

import pytest

from lightning_shards.dataprep.input_files import InputFiles
from lightning_shards.dataprep.writing import plain_copies
from lightning_shards.dataprep.writing.catalog import CatalogBuilder
from lightning_shards.dataprep.writing.journal import JOURNAL_NAME
from lightning_shards.dataprep.writing.packing import Packing
from lightning_shards.dataprep.writing.rewriting import Edit, Output, rewrite
from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.private_files import CacheFolder

CHANGED = "first was changed since it was listed"


def rewritten(path):
    """Other bytes in the same file, at a later time."""
    time = path.stat().st_mtime_ns + 1
    path.write_bytes(b"y" * path.stat().st_size)
    os.utime(path, ns=(time, time))


@pytest.fixture
def catalog(tmp_path):
    """Two files, each of which is a sample of two members."""
    builder = CatalogBuilder()
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(b"xx")
        builder.begin(name)
        number = builder.add_source(str(tmp_path / name))
        builder.add_extent("a", number, 0, 1)
        builder.add_extent("b", number, 1, 1)
    return builder.build()


@pytest.mark.parametrize("max_open", [1, 64])
def test_bytes_of_a_file_that_changes_while_it_is_open_are_refused(catalog, tmp_path, max_open):
    """The second file closes the first one, or the end of the block does."""
    read = []

    def read_all():
        with InputFiles(max_open) as files:
            for extent in [*catalog.extents(0), *catalog.extents(1)]:
                read.append(files.read(extent))
                if len(read) == 1:
                    rewritten(tmp_path / "first")

    with pytest.raises(DamagedShardError, match=CHANGED):
        read_all()
    assert len(read) == (2 if max_open == 1 else 4)


def change_first(sample, folder):
    if sample["__key__"] == "second":
        rewritten(folder / "first")
    return sample


def fail_by_it(sample, folder):
    rewritten(folder / "first")
    raise ValueError("no JPEG")


@pytest.mark.parametrize("change", [change_first, fail_by_it])
@pytest.mark.parametrize("kind", ["transform", "keeps"])
def test_a_file_that_changes_meanwhile_gives_no_shard_and_no_fact(catalog, tmp_path, kind, change):
    output = Output(folder=tmp_path / "out", cache=CacheFolder(tmp_path / "cache"))
    edit = Edit(**{kind: lambda sample: change(sample, tmp_path)})
    with pytest.raises(DamagedShardError, match=CHANGED):
        rewrite(catalog, Packing(max_samples=9), output, edit)
    assert not list((tmp_path / "out").glob("*.tar"))
    assert "kept" not in (tmp_path / "out" / JOURNAL_NAME).read_text()


def test_a_compressed_tar_that_changes_while_it_is_unpacked_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "first.tar.gz"
    path.write_bytes(gzip.compress(bytes(10240)))
    pieces = plain_copies._pieces

    def changing(*given):
        yield from pieces(*given)
        rewritten(path)

    monkeypatch.setattr(plain_copies, "_pieces", changing)
    with (
        pytest.raises(DamagedShardError, match=r"first\.tar\.gz changed while it was read"),
        plain_copies.plain_copies([str(path)], tmp_path / "out"),
    ):
        pass
