"""Every member's bytes are those that `tarfile` and webdataset read."""

import gc
import os
import pickle
import shutil
import subprocess
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys, tar_file_expander
from webdataset.writer import TarWriter

from lightning_shards.errors import (
    DamagedShardError,
    IndexMismatchError,
    MissingFieldError,
    ShardNotFoundError,
)
from lightning_shards.shards import members
from lightning_shards.shards.members import MemberTable, ShardReader, scan_members
from lightning_shards.shards.tar import plain_runs
from lightning_shards.shards.tar.plain_runs import count_samples

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def _read_all(path, table):
    """All samples, as key and bytes by suffix."""
    with ShardReader(path, table) as shard:
        return [
            (table.key(i), {suffix: shard.read(i, suffix) for suffix in table.suffixes_of(i)})
            for i in range(table.num_samples)
        ]


def _webdataset_samples(path):
    with Path(path).open("rb") as stream:
        files = tar_file_expander([{"url": str(path), "stream": stream}])
        return [
            (
                sample["__key__"],
                {name: data for name, data in sample.items() if not name.startswith("__")},
            )
            for sample in group_by_keys(files)
        ]


def _assert_agrees(path):
    """The table and the bytes against both oracles."""
    for with_crc32 in (False, True):
        table = scan_members(path, with_crc32=with_crc32)
        assert _read_all(path, table) == _webdataset_samples(path)
        assert table.num_samples == count_samples(path)
    with tarfile.open(path) as archive:
        data_at = {m.offset_data: archive.extractfile(m).read() for m in archive if m.isreg()}
    with ShardReader(path, table) as shard:
        for sample in range(table.num_samples):
            for suffix in table.suffixes_of(sample):
                offset, size, _ = table.find(sample, suffix)
                assert shard.read(sample, suffix) == data_at[offset]
                assert size == len(data_at[offset])
    return table


def _info(name, kind):
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


ARCHIVES = {
    "two suffixes": [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("1.cls", b"2"), ("1.jpg", b"y")],
    "nested": [("d/e/0.left.png", b"1"), ("d/e/0.right.png", b"2"), ("d.e/0.x", b"3" * 512)],
    "upper case": [("A.JPG", b"1"), ("A.Cls", b"2"), ("a.jpg", b"3")],
    "long names": [("n" * 90 + ".txt", b"1"), ("d" * 80 + "/" + "n" * 80 + ".txt", b"2")],
    "empty": [("0.a", b""), ("0.b", b"1"), ("1.b", b""), ("2.a", b"")],
    "in no sample": [("README", b"1"), ("0.a", b"1"), ("__x__/y.z", b"2"), ("0.b", b"2")],
    "left out": [("0.x", b"1"), ("1.__bad__", b"1"), ("1.x", b"2"), ("2.x", b"3")],
    "key comes back": [("0.a", b"1"), ("1.a", b"2"), ("0.b", b"3"), ("0.c", b"4")],
    "other suffixes": [("0.a", b"1"), ("1.b", b"2"), ("2.b", b"3"), ("2.a", b"4"), ("2.c", b"5")],
    "names in other scripts": [("ä.txt", b"1"), ("\udcff.txt", b"2"), ("日.本", b"3")],
    "folders": [("0.a", b"1"), (_info("d.x", tarfile.DIRTYPE), b""), ("0.b", b"2")],
    "nothing": [],
}


@pytest.mark.parametrize("tar_format", FORMATS)
@pytest.mark.parametrize("archive", ARCHIVES.values(), ids=ARCHIVES)
def test_samples_are_those_of_the_oracles(tmp_path, write_tar, archive, tar_format):
    _assert_agrees(write_tar(tmp_path / "0.tar", archive, tar_format=tar_format, mtime=0.5))


@settings(max_examples=100, deadline=None)
@given(
    archive=st.lists(
        st.tuples(
            st.text("abA./é", min_size=1, max_size=6)
            | st.builds("{}.{}".format, st.text("k/", min_size=1, max_size=130), st.just("x")),
            st.binary(max_size=3) | st.integers(500, 1600).map(bytes),
        ),
        max_size=8,
    ),
    tar_format=st.sampled_from(FORMATS[1:]),
)
def test_random_archives_are_read_as_by_the_oracles(
    tmp_path_factory, write_tar, archive, tar_format
):
    path = write_tar(tmp_path_factory.getbasetemp() / "r.tar", archive, tar_format=tar_format)
    try:
        _webdataset_samples(path)
    except ValueError:
        with pytest.raises(DamagedShardError, match="two members for the suffix"):
            scan_members(path)
    else:
        _assert_agrees(path)


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar program")
@pytest.mark.parametrize("tar_format", ["gnu", "oldgnu", "ustar", "pax", "v7"])
def test_what_the_tar_program_writes_is_read(tmp_path, tar_format):
    names = ["a.cls", "a.jpg", "d/b.cls", "d/b.jpg"]
    if tar_format in ("gnu", "oldgnu", "pax"):
        names += ["e/" + "n" * 200 + ".txt"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(os.urandom(300 * number))
    command = ["tar", f"--format={tar_format}", "-cf", "0.tar", *names]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert _assert_agrees(tmp_path / "0.tar").num_samples == (len(names) + 1) // 2


@pytest.mark.parametrize("tar_format", ["USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT", None])
def test_what_webdataset_writes_is_read(tmp_path, tar_format):
    with TarWriter(str(tmp_path / "0.tar"), format=tar_format) as writer:
        for sample in range(20):
            writer.write({"__key__": f"d/{sample}", "cls": sample, "seg.txt": "x" * sample * 50})
    assert _assert_agrees(tmp_path / "0.tar").num_samples == 20


# --- the table


def test_a_table_finds_members(path):
    table = scan_members(path)
    assert (table.num_samples, table.suffixes) == (3, ("cls", "jpg"))
    assert table.find(0, "jpg") == (1536, 700, None)
    assert table.find(1, "cls") == (3072, 0, None)
    assert table.find(1, "jpg") is None
    assert table.find(2, "cls") is None
    assert table.find(0, "png") is None
    assert [table.suffixes_of(sample) for sample in range(3)] == [["cls", "jpg"], ["cls"], ["jpg"]]
    assert [table.key(sample) for sample in range(3)] == ["0", "1", "2"]
    assert table.stamp == (path.stat().st_size, path.stat().st_mtime_ns)


def test_a_table_has_checksums_when_asked(path):
    table = scan_members(path, with_crc32=True)
    assert table.find(0, "cls") == (512, 1, 0x83DCEFB7)  # of "1"
    assert table.find(1, "cls") == (3072, 0, 0)


def test_what_a_table_finds_is_plain_ints(path):
    found = scan_members(path, with_crc32=True).find(0, "jpg")
    assert [type(value) for value in found] == [int, int, int]


@pytest.mark.parametrize("sample", [-1, 3, 1 << 70])
def test_a_sample_that_is_not_there_is_an_index_error(path, sample):
    table = scan_members(path)
    for method in (table.key, table.suffixes_of, lambda sample: table.find(sample, "cls")):
        with pytest.raises(IndexError, match=f"sample {sample} of a shard that holds 3"):
            method(sample)


def test_arrays_of_a_table_are_read_only(path):
    table = scan_members(path, with_crc32=True)
    for name in members.ARRAY_FIELDS:
        assert not getattr(table, name).flags.writeable


def test_a_table_travels_in_a_pickle(path):
    for table in (scan_members(path), scan_members(path, with_crc32=True)):
        copy = pickle.loads(pickle.dumps(table))
        assert isinstance(copy, MemberTable)
        assert copy.has_same_members(table)
        assert copy.find(0, "jpg") == table.find(0, "jpg")
        assert copy.stamp == table.stamp


def test_tables_are_compared_by_all_that_both_know(path, write_tar, tmp_path):
    table = scan_members(path, with_crc32=True)
    os.utime(path, ns=(5, 5))
    assert scan_members(path, with_crc32=True).has_same_members(table)
    assert scan_members(path).has_same_members(table)
    for number, archive in enumerate(
        [
            [("0.cls", b"2"), ("0.jpg", b"x" * 700), ("1.cls", b""), ("2.jpg", b"z" * 512)],
            [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("1.cls", b""), ("3.jpg", b"z" * 512)],
            [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("1.cls", b""), ("2.png", b"z" * 512)],
            [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("0.png", b""), ("2.jpg", b"z" * 512)],
        ]
    ):
        other = write_tar(tmp_path / f"other-{number}.tar", archive)
        assert not scan_members(other, with_crc32=True).has_same_members(table)


def test_a_shard_that_is_written_while_it_is_scanned_is_refused(path, monkeypatch):
    def walk(data, url, start):
        os.utime(path, ns=(7, 7))
        return iter(())

    monkeypatch.setattr(plain_runs, "walk_members", walk)
    with pytest.raises(DamagedShardError, match="changed while it was read"):
        scan_members(path)


def test_a_missing_shard_says_so(path, tmp_path):
    table = scan_members(path)
    for opened in (scan_members, lambda gone: ShardReader(gone, table)):
        with pytest.raises(ShardNotFoundError, match=r"1\.tar does not exist; check the path"):
            opened(tmp_path / "1.tar")


# --- the reader


def test_a_missing_suffix_names_what_the_sample_has(path):
    with ShardReader(path, scan_members(path)) as shard:
        with pytest.raises(
            MissingFieldError, match=r"sample '0' of .*0.tar has no 'png'; it has c"
        ):
            shard.read(0, "png")
        with pytest.raises(IndexError, match="sample 3"):
            shard.read(3, "cls")


@pytest.mark.parametrize(
    ("start", "stop", "extent"),
    [
        (0, 1, (512, 1724)),
        (1, 2, (3072, 0)),
        (0, 9, (512, 3584)),
        (2, 3, (3584, 512)),
        (1, 1, (0, 0)),
    ],
)
def test_the_bytes_of_a_range_of_samples_are_known(path, start, stop, extent):
    assert scan_members(path).extent_of(start, stop) == extent


def test_a_closed_reader_reads_nothing(path):
    with ShardReader(path, scan_members(path)) as shard:
        pass
    shard.close()
    with pytest.raises(ValueError, match="closed file"):
        shard.read(0, "cls")


def test_no_descriptor_stays_open(path, open_files):
    table = scan_members(path, with_crc32=True)
    with ShardReader(path, table) as shard:
        shard.read(0, "cls")
        assert open_files() == [str(path)]
    os.truncate(path, 100)
    with pytest.raises(IndexMismatchError):
        ShardReader(path, table)
    with pytest.raises(DamagedShardError):
        scan_members(path)
    gc.collect()
    assert open_files() == []


def test_threads_share_a_reader(tmp_path, write_tar):
    archive = [(f"{i}.txt", bytes([i]) * (i * 37 + 1)) for i in range(50)]
    path = write_tar(tmp_path / "t.tar", archive)
    wrong = []

    def read(shard):
        samples = np.random.default_rng(0).integers(0, 50, 2000).tolist()
        wrong.extend(i for i in samples if shard.read(i, "txt") != archive[i][1])

    with ShardReader(path, scan_members(path, with_crc32=True)) as shard:
        threads = [threading.Thread(target=read, args=(shard,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
