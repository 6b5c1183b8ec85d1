"""DALI's index stands for a member table, or it is said why not."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from lightning_shards.dataprep.indexes.idx_files import dali_index
from lightning_shards.shards.members import ShardReader, scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.published.dali_index import UnusableIndexError, dali_table
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.tables import TableStore

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
MEMBERS = [("a.cls", b"1"), ("a.JPG", b"x" * 602), ("b.cls", b"2"), ("b.JPG", b"y" * 99)]


def write(path: Path, members, tar_format=tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5
            archive.addfile(info, io.BytesIO(data))
    return path


def table(text: str, shard: Path):
    return dali_table(text.encode(), str(shard), LocalStorage(), source="a.idx")


@pytest.mark.parametrize("tar_format", FORMATS)
def test_the_table_is_that_of_a_scan(tmp_path, tar_format):
    long = [("d" * 120 + "/é.txt", b""), ("d" * 120 + "/é.__bad__", b""), ("z.seg.png", b"9" * 512)]
    if tar_format == tarfile.USTAR_FORMAT:
        long = long[2:]
    shard = write(tmp_path / "a.tar", MEMBERS + long, tar_format)
    made, scanned = table(dali_index(shard), shard), scan_members(shard)
    assert made.has_same_members(scanned)
    assert (made.stamp, made.crc32) == (scanned.stamp, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[:0], "it is cut short, or no"),
        (lambda text: text[:-1], "cut short"),
        (lambda text: text.replace("v1.2 2", "v1.2 x"), "no index"),
        (lambda text: text.replace("v1.2", "v1.3"), "or no index of DALI's version"),
        (lambda text: text.replace("v1.2 2", "v1.1 2"), "v1.1 has no names of members, so samples"),
        (lambda text: text.replace("v1.2 2", "v1.2 3"), "it says 3 samples, and has 2 lines"),
        (lambda text: text[:5] + "0\n", "it says 0 samples"),
        (
            lambda text: text.replace("a.cls", "a b.cls"),
            "line 2 is no list .* a name with a space cannot",
        ),
        (lambda text: text.replace(" 512 ", " x "), "line 2 has 'x' and '1' where offset"),
        (lambda text: text.replace(" 512 ", " -512 "), "line 2 has '-512'"),
        (lambda text: text.replace(" 512 ", " ٥١٢ "), "line 2 has '٥١٢'"),
        (lambda text: text.replace(" 512 ", f" {'9' * 30} "), "line 2 has '999"),
        (lambda text: text.replace(" 512 ", " 513 "), "'a.cls' cannot begin at byte 513"),
        (lambda text: text.replace(" 512 ", " 0 "), "'a.cls' cannot begin at byte 0"),
        (lambda text: text.replace(" 1536 602", " 1024 602"), "'a.JPG' cannot begin at byte 1024"),
        (lambda text: text.replace(" 602 ", " 2000 "), "'b.cls' cannot begin at byte 3072"),
        (lambda text: text.replace(" 99 ", " 99999999 "), "'b.JPG' would end at byte .* has 10240"),
        (lambda text: text.replace(" 99 ", " 98 "), "no header of 'b.JPG' with 98 bytes"),
        (lambda text: text.replace("a.cls", "c.cls"), "line 2 has 'a.JPG' among the members"),
        (lambda text: text.replace("cls 512", "txt 512"), "line 2 has 'a.cls' among the members"),
        (lambda text: text.replace(" a.", " c."), "no header of 'c.cls' with 1 bytes"),
        (lambda text: text.replace(" 512 1 ", " 512 2 "), "no header of 'a.cls' with 2 bytes"),
        (lambda text: "v1.2 1\n" + text.split("\n")[1] + "\n", "goes on with 'b.cls'"),
        (lambda text: text.replace("JPG", "CLS"), "no header of 'b.CLS'"),
        (
            lambda text: text.replace("JPG 1536 602 a.JPG", "CLS 1536 602 a.CLS"),
            "two members for the suffix 'cls'",
        ),
    ],
)
def test_what_it_cannot_be_is_said(tmp_path, change, reason):
    shard = write(tmp_path / "a.tar", MEMBERS)
    text = change(dali_index(shard))
    with pytest.raises(UnusableIndexError, match=f"a.idx cannot stand for .*{reason}.*; make it"):
        table(text, shard)


def test_damage_of_any_byte_is_an_error_or_another_size_of_a_member_between(tmp_path):
    shard = write(tmp_path / "a.tar", MEMBERS)
    text, scanned = dali_index(shard), scan_members(shard)
    for place in range(len(text)):
        for letter in ("0", " ", "\n", "\0", "\udcff"):
            changed = text[:place] + letter + text[place + 1 :]
            data = changed.encode("utf-8", "surrogateescape")
            try:
                made = dali_table(data, str(shard), LocalStorage(), source="a.idx")
            except UnusableIndexError:
                continue
            assert (made.offsets == scanned.offsets).all()
            assert made.suffixes == scanned.suffixes
            assert made.sizes[[0, -1]].tolist() == [1, 99]


@pytest.fixture
def local(tmp_path):
    shard = write(tmp_path / "0.a.tar", MEMBERS)
    index = tmp_path / "0.idx"
    index.write_text(dali_index(shard))
    return shard, index


def test_readers_take_it_in_place_of_a_scan(local, tmp_path, monkeypatch):
    shard, _ = local
    scanned = scan_members(shard)
    cache = CacheFolder(tmp_path / "cache")
    monkeypatch.setattr("lightning_shards.shards.tables.scan_members", None)
    for _ in range(2):  # the second time it comes from the cache
        store = TableStore(cache, takes_dali=True)
        made = store.table_of(shard)
        assert made.has_same_members(scanned)
        with ShardReader(shard, made) as reader:
            assert reader.read(1, "jpg") == b"y" * 99
    with pytest.raises(TypeError):  # tools scan
        TableStore(cache).table_of(shard)


def test_one_that_is_older_than_its_shard_or_of_no_use_is_passed_over(local, tmp_path):
    shard, index = local
    index.write_text(index.read_text().replace(" 602 ", " 601 "))
    os.utime(index, ns=(1, 1))
    store = TableStore(CacheFolder(tmp_path / "cache"), takes_dali=True)
    assert store.table_of(shard).has_same_members(scan_members(shard))
    write(shard, [("c.cls", b"3")])
    index.write_text("v1.1 1\ncls 512 1\n")
    assert store.table_of(shard).key(0) == "c"


def test_a_shard_that_was_written_again_is_scanned(local, tmp_path):
    shard, _ = local
    store = TableStore(CacheFolder(tmp_path / "cache"), takes_dali=True)
    assert store.table_of(shard).num_samples == 2
    write(shard, [("c.cls", b"3")])
    assert store.table_of(shard).key(0) == "c"


def test_a_table_by_an_index_stands_for_one_shard(tmp_path):
    """`a.0.tar` and `a.1.tar` have the index `a.idx`, and may have one size and time."""
    shards = [write(tmp_path / f"a.{name}.tar", [(f"{name}.cls", b"1")]) for name in "01"]
    (tmp_path / "a.idx").write_text(dali_index(shards[0]))
    for shard in shards:
        os.utime(shard, ns=(5, 5))
    store = TableStore(CacheFolder(tmp_path / "cache"), takes_dali=True)
    assert [store.table_of(shard).key(0) for shard in shards] == ["0", "1"]
