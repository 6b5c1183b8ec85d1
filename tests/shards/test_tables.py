"""Sidecars: whole or absent, never wrong, whoever writes them and whatever becomes of the shard."""

import itertools
import json
import logging
import os
import pickle
import struct
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.errors import DamagedShardError, IndexMismatchError, ShardNotFoundError
from lightning_shards.shards import tables
from lightning_shards.shards.members import ARRAY_FIELDS, ShardReader, scan_members
from lightning_shards.shards.tables import TableStore, build_tables, open_table, write_table

ARCHIVE = [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("1.cls", b""), ("\udcff.jpg", b"z" * 512)]


@pytest.fixture
def path(tmp_path, write_tar):
    return write_tar(tmp_path / "0.tar", ARCHIVE)


@pytest.fixture
def store(tmp_path):
    return TableStore(tmp_path / "cache")


@pytest.fixture
def forbid_scans(monkeypatch):
    def forbid():
        monkeypatch.setattr(tables, "scan_members", lambda url, **_: pytest.fail(f"scanned {url}"))

    return forbid


# --- the file


@pytest.mark.parametrize("with_crc32", [False, True])
@pytest.mark.parametrize("archive", [ARCHIVE, ARCHIVE[:1], []], ids=["three", "one", "none"])
def test_a_table_comes_back_as_it_was(tmp_path, write_tar, archive, with_crc32):
    table = scan_members(write_tar(tmp_path / "0.tar", archive), with_crc32=with_crc32)
    write_table(tmp_path / "x.members", table)
    opened = open_table(tmp_path / "x.members")
    assert opened.has_same_members(table)
    assert opened.stamp == table.stamp
    assert (opened.crc32 is None) == (not with_crc32)
    for sample, suffix in itertools.product(range(table.num_samples), ["cls", "jpg", "png"]):
        assert opened.find(sample, suffix) == table.find(sample, suffix)
        assert opened.key(sample) == table.key(sample)


def test_an_opened_table_is_mapped_aligned_and_read_only(tmp_path, path):
    write_table(tmp_path / "x.members", scan_members(path, with_crc32=True))
    opened = open_table(tmp_path / "x.members")
    for name in ARRAY_FIELDS:
        values = getattr(opened, name)
        assert not values.flags.owndata
        assert not values.flags.writeable
        assert values.flags.aligned


def test_the_format_stays_what_it_is(tmp_path, path):
    os.utime(path, ns=(1, 1))
    write_table(tmp_path / "x.members", scan_members(path, with_crc32=True))
    digest = sha256((tmp_path / "x.members").read_bytes()).hexdigest()
    assert digest[:16] == "5f01aa060b9cd8a3"  # a change needs another _VERSION


def test_no_file_is_no_table(tmp_path, caplog):
    assert open_table(tmp_path / "x.members") is None
    assert caplog.records == []


@pytest.fixture
def sidecar(path, store):
    """The sidecar of the shard at `path`, with checksums."""
    TableStore(store.sidecar_of(path).parents[2], with_crc32=True).table_of(path)
    return store.sidecar_of(path)


def test_every_flipped_bit_is_detected(sidecar, caplog):
    caplog.set_level(logging.ERROR)
    data = sidecar.read_bytes()
    with sidecar.open("r+b", buffering=0) as file:
        for position, bit in itertools.product(range(len(data)), range(8)):
            os.pwrite(file.fileno(), bytes([data[position] ^ 1 << bit]), position)
            assert open_table(sidecar) is None
            os.pwrite(file.fileno(), data[position : position + 1], position)
    assert open_table(sidecar) is not None


def test_every_cut_is_detected(sidecar, caplog):
    caplog.set_level(logging.ERROR)
    data = sidecar.read_bytes()
    for length in range(len(data)):
        sidecar.write_bytes(data[:length])
        assert open_table(sidecar) is None
    sidecar.write_bytes(data + b"\0")
    assert open_table(sidecar) is None


@pytest.mark.parametrize("kept", [0, 23, 200, -1])
def test_a_damaged_sidecar_is_made_anew(sidecar, store, path, caplog, kept, forbid_scans):
    sidecar.write_bytes(sidecar.read_bytes()[:kept])
    assert store.table_of(path).find(0, "jpg")[:2] == (1536, 700)
    assert "is made again" in caplog.text
    forbid_scans()
    assert store.table_of(path).num_samples == 3


def _forge(sidecar, *, header=None, facts=None, values=()):
    """Put other contents into a sidecar, under a right checksum.

    `values` are (position in the arrays, bytes), `facts` go into the JSON, `header` replaces it.
    """
    data = sidecar.read_bytes()
    (length,) = struct.unpack_from("<Q", data, 16)
    arrays = bytearray(data[24 + length :])
    for position, value in values:
        arrays[position : position + len(value)] = value
    if header is None:
        header = json.dumps(json.loads(data[24 : 24 + length]) | (facts or {})).encode()
    header += b" " * (-len(header) % 8)
    checked = struct.pack("<Q", len(header)) + header + arrays
    sidecar.write_bytes(struct.pack("<8sII", b"LSmember", 1, crc32(checked)) + checked)


FORGED_JSON = {
    "list": b"[]",
    "no JSON": b"{",
    "deep": b"[" * 100_000,
    "long number": b"9" * 10_000,
    "not UTF-8": b"\xff",
}
FORGED_FACTS = {
    "negative": {"num_samples": -1},
    "huge": {"num_members": 1 << 61},
    "beyond": {"num_samples": 1 << 90},
    "size beyond": {"file_size": 1 << 90},
    "negative but filled": {"num_samples": -2, "key_bytes": 83},
    "bool": {"key_bytes": True},
    "text": {"file_size": "1"},
    "no time": {"mtime_ns": None},
    "no flag": {"has_crc32": 1},
    "other flag": {"has_crc32": False},
    "suffixes": {"suffixes": "cls"},
    "suffix": {"suffixes": ["cls", 1]},
    "few suffixes": {"suffixes": ["cls"]},
    "fewer samples": {"num_samples": 2},
    "smaller shard": {"file_size": 4000},
}
# int64 columns of 3 samples and 4 members: key_starts 0, sample_starts 32, offsets 64, sizes 96
FORGED_NUMBERS = {
    "keys do not begin at 0": (0, 1),
    "keys go back": (8, 100),
    "keys end elsewhere": (24, 2),
    "samples do not begin at 0": (32, 1),
    "samples go back": (40, -1),
    "samples end elsewhere": (56, 5),
    "negative offset": (64, -512),
    "offset past the end": (88, 1 << 62),
    "offsets go back": (72, 0),
    "negative size": (112, -1),
    "size past the end": (120, 1 << 20),
    "size that overflows": (120, (1 << 63) - 1),
    "overlap": (96, 2000),
}


def _assert_refused(sidecar, caplog, **forgery):
    _forge(sidecar)
    assert open_table(sidecar) is not None
    _forge(sidecar, **forgery)
    start = time.perf_counter()
    assert open_table(sidecar) is None
    assert time.perf_counter() - start < 1
    assert "is made again" in caplog.text


@pytest.mark.parametrize("header", FORGED_JSON.values(), ids=FORGED_JSON)
def test_a_sidecar_with_other_json_is_no_table(sidecar, caplog, header):
    _assert_refused(sidecar, caplog, header=header)


@pytest.mark.parametrize("facts", FORGED_FACTS.values(), ids=FORGED_FACTS)
def test_a_sidecar_with_wrong_facts_is_no_table(sidecar, caplog, facts):
    _assert_refused(sidecar, caplog, facts=facts)


@pytest.mark.parametrize(("position", "value"), FORGED_NUMBERS.values(), ids=FORGED_NUMBERS)
def test_a_sidecar_that_points_elsewhere_is_no_table(sidecar, caplog, position, value):
    _assert_refused(sidecar, caplog, values=[(position, struct.pack("<q", value))])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 163), st.binary(min_size=1, max_size=1)), max_size=3))
def test_a_randomly_forged_sidecar_never_points_outside(tmp_path_factory, write_tar, values):
    folder = tmp_path_factory.getbasetemp()
    path = write_tar(folder / "forged.tar", ARCHIVE)
    sidecar = folder / "forged.members"
    write_table(sidecar, scan_members(path))
    _forge(sidecar, values=values)
    table = open_table(sidecar)
    if table is None:
        return
    with ShardReader(path, table) as shard:
        for sample in range(table.num_samples):
            assert isinstance(table.key(sample), str)
            for suffix in set(table.suffixes_of(sample)):
                assert len(shard.read(sample, suffix)) == table.find(sample, suffix)[1]


# --- the writers


PROGRAM = """
import os, signal, sys
from pathlib import Path
from lightning_shards.shards import members, tables

shard, sidecar, stage = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
table = members.scan_members(shard, with_crc32=True)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Half:
    def __init__(self, file): self.file = file
    def write(self, data):
        self.file.write(data[: len(data) // 2]); self.file.flush(); die()
    def __getattr__(self, name): return getattr(self.file, name)
    def __enter__(self): return self
    def __exit__(self, *_): self.file.close()

if stage == "created": tables.os.fdopen = die
if stage == "half":
    fdopen = os.fdopen
    tables.os.fdopen = lambda *a: Half(fdopen(*a))
if stage == "synced": tables.os.fsync = die
if stage == "replaced": tables.Path.replace = die
if stage == "ready":
    print("ready", flush=True)
while True:
    tables.write_table(sidecar, table)
    if stage != "ready": break
"""


def _write(path, sidecar, stage, **options):
    command = [sys.executable, "-c", PROGRAM, str(path), str(sidecar), stage]
    return subprocess.Popen(command, **options)


@pytest.mark.parametrize("stage", ["created", "half", "synced", "replaced"])
def test_a_writer_that_is_killed_leaves_what_was_there(tmp_path, path, caplog, stage):
    target = tmp_path / "x.members"
    old = scan_members(path)
    write_table(target, old)
    assert _write(path, target, stage).wait() == -9
    assert len(list(tmp_path.glob("*.part"))) == 1
    opened = open_table(target)
    assert opened.crc32 is None
    assert opened.has_same_members(old)
    assert caplog.records == []


def test_writers_killed_at_any_time_leave_a_whole_file(tmp_path, path, caplog):
    target = tmp_path / "x.members"
    expected = scan_members(path, with_crc32=True)
    for wait_ms in (0, 7, 23):
        with _write(path, target, "ready", stdout=subprocess.PIPE) as writer:
            writer.stdout.readline()
            deadline = time.perf_counter() + wait_ms / 1000
            while time.perf_counter() < deadline:
                pass
            writer.kill()
        opened = open_table(target)
        assert opened is None or opened.has_same_members(expected)
    assert caplog.records == []


def test_eight_processes_may_write_at_once(tmp_path, write_tar, caplog):
    """Each writes the table of another shard to one place: a reader sees one of them, whole."""
    target = tmp_path / "x.members"
    archive = [(f"{i:04d}.txt", b"x") for i in range(3000)]
    shards = [write_tar(tmp_path / f"{n}.tar", archive[n * 300 :]) for n in range(8)]
    expected = [scan_members(shard, with_crc32=True) for shard in shards]
    write_table(target, expected[0])
    running = [_write(s, target, "ready", stdout=subprocess.PIPE) for s in shards]
    try:
        for process in running:
            process.stdout.readline()
        seen, opened_times, deadline = set(), 0, time.perf_counter() + 60
        while (len(seen) < 3 or opened_times < 200) and time.perf_counter() < deadline:
            opened_times += 1
            opened = open_table(target)
            (number,) = [n for n, table in enumerate(expected) if table.stamp == opened.stamp]
            assert opened.has_same_members(expected[number])
            seen.add(number)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert len(seen) >= 3
    assert caplog.records == []


def test_a_failed_write_leaves_nothing_behind(tmp_path, path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(tables.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_table(tmp_path / "f" / "x.members", scan_members(path))
    assert list((tmp_path / "f").iterdir()) == []


# --- the store


def test_a_second_use_scans_nothing(path, store, tmp_path, forbid_scans):
    first = store.table_of(path, expected_samples=3)
    assert store.has_current(path)
    forbid_scans()
    assert TableStore(tmp_path / "cache").table_of(path, expected_samples=3).has_same_members(first)


def test_sidecars_lie_in_a_folder_per_folder_of_shards(path, store, tmp_path, monkeypatch):
    sidecar = store.sidecar_of(path)
    assert sidecar.name == "0.tar.members"
    assert sidecar.parents[1] == tmp_path / "cache" / "members"
    assert len(sidecar.parent.name) == 24
    assert store.sidecar_of(tmp_path / "val" / "0.tar").parent != sidecar.parent
    monkeypatch.chdir(tmp_path)
    assert store.sidecar_of("0.tar") == store.sidecar_of("./0.tar") == sidecar
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    default = TableStore().sidecar_of(path)
    assert default.parents[1] == tmp_path / "home/.cache/lightning_shards/members"


def test_a_shard_that_was_only_touched_is_listed_again_quietly(path, store, caplog, forbid_scans):
    store.table_of(path)
    os.utime(path, ns=(5, 5))
    assert not store.has_current(path)
    assert store.table_of(path, expected_samples=3).mtime_ns == 5
    assert caplog.records == []
    forbid_scans()
    assert store.table_of(path).mtime_ns == 5


def test_a_touched_shard_keeps_its_checksums(path, tmp_path, store, caplog):
    TableStore(tmp_path / "cache", with_crc32=True).table_of(path)
    os.utime(path, ns=(5, 5))
    assert store.table_of(path).crc32 is not None
    assert caplog.records == []


@pytest.mark.parametrize("same_time", [False, True], ids=["same size", "same time"])
def test_a_shard_written_again_is_listed_again_and_said(path, store, write_tar, caplog, same_time):
    before = store.table_of(path)
    write_tar(path, [("7.cls", bytes(20_000 if same_time else 1)), ("8.cls", b""), ("9.cls", b"")])
    os.utime(path, ns=(before.mtime_ns, before.mtime_ns) if same_time else (5, 5))
    assert store.table_of(path, expected_samples=3).key(0) == "7"
    (record,) = caplog.records
    assert "0.tar changed since its members were listed: it held 3 samples" in record.getMessage()


def test_a_shard_with_another_number_of_samples_is_refused(path, store, write_tar):
    store.table_of(path, expected_samples=3)
    write_tar(path, ARCHIVE[:1])
    message = r"0\.tar changed since it was indexed: it holds 1 samples, 3 by the index; put"
    for _ in range(2):  # by the scan, and by the sidecar
        with pytest.raises(IndexMismatchError, match=message):
            store.table_of(path, expected_samples=3)
    assert store.table_of(path).num_samples == 1


def test_a_store_with_checksums_replaces_a_table_without(path, store, tmp_path, caplog):
    assert store.table_of(path).crc32 is None
    careful = TableStore(tmp_path / "cache", with_crc32=True)
    assert not careful.has_current(path)
    assert careful.table_of(path).crc32 is not None
    assert store.table_of(path).crc32 is not None
    assert caplog.records == []


def test_a_cache_that_cannot_be_written_is_one_warning(
    write_shards, tmp_path, caplog, forbid_scans
):
    (tmp_path / "file").touch()
    store = TableStore(tmp_path / "file" / "x")
    first, second = write_shards([3, 4])
    assert store.table_of(first).num_samples == 3
    assert store.table_of(second).num_samples == 4
    records = [record for record in caplog.records if "stay in memory" in record.getMessage()]
    assert len(records) == 1
    forbid_scans()
    assert pickle.loads(pickle.dumps(store)).table_of(first).num_samples == 3


def test_what_stays_in_memory_is_held_against_the_shard_too(path, tmp_path, write_tar):
    (tmp_path / "file").touch()
    store = TableStore(tmp_path / "file" / "x")
    store.table_of(path)
    write_tar(path, ARCHIVE[:1])
    assert store.table_of(path).num_samples == 1


def test_a_cache_that_can_be_written_again_is_used_again(path, tmp_path, write_tar, forbid_scans):
    blocker = tmp_path / "cache"
    blocker.touch()
    store = TableStore(blocker)
    store.table_of(path)
    blocker.unlink()
    write_tar(path, ARCHIVE[:1])
    store.table_of(path)
    forbid_scans()
    assert store.table_of(path).num_samples == TableStore(blocker).table_of(path).num_samples == 1


def test_a_user_without_a_home_gets_tables(path, monkeypatch, caplog):
    def no_home(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert TableStore().table_of(path).num_samples == 3
    assert "stay in memory" in caplog.text


def test_errors_of_the_scan_come_through(path, store, tmp_path):
    with pytest.raises(ShardNotFoundError, match=r"1\.tar does not exist"):
        store.table_of(tmp_path / "1.tar")
    os.truncate(path, 700)
    with pytest.raises(DamagedShardError, match=r"0\.tar is cut short"):
        store.table_of(path)


# --- many shards


def test_tables_are_built_once_for_each_shard(write_shards, store, monkeypatch, capsys):
    urls = write_shards([3, 4, 5])
    scanned = []

    def scan(url, **options):
        scanned.append(url)
        return scan_members(url, **options)

    monkeypatch.setattr(tables, "scan_members", scan)
    build_tables(urls[:1], store)
    assert capsys.readouterr().err == ""  # not a terminal
    build_tables([*urls, *urls], store, show_progress=True)
    assert scanned == urls
    error = capsys.readouterr().err
    assert error.startswith("\rlisted 1 of 2 shards in /")
    assert error.endswith("\n")
    build_tables(urls, store, show_progress=True)
    assert capsys.readouterr().err == ""


def test_tables_made_before_a_damaged_shard_are_kept(write_shards, store):
    urls = write_shards([3, 4, 5])
    os.truncate(urls[1], 700)
    with pytest.raises(DamagedShardError, match=r"001.tar is cut short"):
        build_tables(urls, store)
    assert [store.has_current(url) for url in urls] == [True, False, False]
