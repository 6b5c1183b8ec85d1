"""A journal is believed as far as it is this user's, whole, and true of what is there."""

import errno
import fcntl
import json
import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_shards.dataprep.writing.journal import JOURNAL_NAME, Journal
from lightning_shards.dataprep.writing.tar_writer import write_shard
from lightning_shards.dataprep.writing.writer import ShardWriter
from lightning_shards.errors import ConfigError, FileAccessError
from lightning_shards.shards.urls import expand_urls

SETTINGS = {"samples": 3}
PREFIXES = {"train": "train", "val": "val"}
NAME = "train-000000.tar"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def begin(out, prefixes=PREFIXES, **changed):
    return Journal(out, SETTINGS | changed, prefixes)


@pytest.fixture
def begun(out):
    """A folder with one shard that its journal notes."""
    with begin(out) as journal:
        shard = write_shard(out / "train" / NAME, [("0", [("cls", b"1")])])
        journal.note("train", shard)
        journal.note_fact("kept 0", "ff")
    return shard


@pytest.fixture
def precious(tmp_path):
    path = tmp_path / "precious"
    path.write_text("years of work")
    return path


def lines(out):
    """What the lines of the journal say."""
    return [json.loads(line[9:]) for line in (out / JOURNAL_NAME).read_bytes().splitlines()]


def forge(out, *entries):
    """A journal of these lines, each under a right checksum."""
    texts = [entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in entries]
    content = b"".join(b"%08x %s\n" % (crc32(text), text) for text in texts)
    (out / JOURNAL_NAME).write_bytes(content)


# --- what is there


def test_noted_shard_is_known_to_the_next_run(out, begun):
    with begin(out) as journal:
        assert journal.written("train", NAME) == begun
        assert journal.fact("kept 0") == "ff"


def test_shard_that_was_cut_is_written_again_whatever_its_time_says(out, begun):
    path = out / "train" / NAME
    status = path.stat()
    os.truncate(path, begun.size_bytes - 512)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with begin(out) as journal:
        assert journal.written("train", NAME) is None


def test_shard_in_a_copied_folder_is_known_by_its_contents(out, begun, tmp_path):
    shutil.copytree(out, tmp_path / "copy", copy_function=shutil.copyfile)
    with begin(tmp_path / "copy") as journal:
        assert journal.written("train", NAME) == begun


def test_shard_with_other_bytes_of_the_same_size_is_none(out, begun):
    path = out / "train" / NAME
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    with begin(out) as journal:
        assert journal.written("train", NAME) is None


def test_link_to_the_same_bytes_is_no_shard(out, begun, tmp_path):
    path = out / "train" / NAME
    path.rename(tmp_path / "elsewhere.tar")
    path.symlink_to(tmp_path / "elsewhere.tar")
    with begin(out) as journal:
        assert journal.written("train", NAME) is None


# --- whose it is


def test_link_in_its_place_is_refused_and_not_followed(out, precious):
    out.mkdir()
    (out / JOURNAL_NAME).symlink_to(precious)
    with pytest.raises(FileAccessError, match=r"journal is a link; put a regular file there"):
        begin(out)
    assert precious.read_text() == "years of work"


def test_link_to_nowhere_is_refused_and_makes_no_file(out, tmp_path):
    out.mkdir()
    (out / JOURNAL_NAME).symlink_to(tmp_path / "new")
    with pytest.raises(FileAccessError, match="journal is a link"):
        begin(out)
    assert not (tmp_path / "new").exists()


def test_second_name_of_another_file_is_refused_and_not_written(out, precious):
    out.mkdir()
    (out / JOURNAL_NAME).hardlink_to(precious)
    with pytest.raises(FileAccessError, match="journal has another name, too, under which it may"):
        begin(out)
    assert precious.read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_journal_of_another_user_makes_no_run_skip_its_work(out, begun):
    os.chown(out / JOURNAL_NAME, 12345, 12345)
    with pytest.raises(FileAccessError, match=r"was written by another user \(uid 12345\)"):
        begin(out)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused(out, make):
    out.mkdir()
    make(out / JOURNAL_NAME)
    with pytest.raises(FileAccessError, match=r"journal is a (fifo|folder)"):
        begin(out)


def test_folder_of_a_split_that_is_a_link_is_refused(out, tmp_path):
    (tmp_path / "home").mkdir()
    out.mkdir()
    (out / "val").symlink_to(tmp_path / "home")
    with pytest.raises(FileAccessError, match=r"out/val is a link to /.*: remove it"):
        begin(out)


def test_file_in_the_place_of_the_folder_is_told(precious):
    with pytest.raises(FileAccessError, match="a file stands where a folder should be"):
        begin(precious)


def test_planted_journal_does_not_give_shards_of_the_user_away(out, precious):
    """What it names outside the folder is neither read, nor deleted, nor overwritten."""
    out.mkdir()
    (out / JOURNAL_NAME).symlink_to(precious)
    (out / "shard-000000.tar").write_text("years of work")
    with pytest.raises(FileAccessError), ShardWriter(out, cache_dir=out / "cache") as writer:
        writer.write({"__key__": "0", "cls": "1"})
    assert (out / "shard-000000.tar").read_text() == "years of work"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_file_system_without_locks_is_written_to(out, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with ShardWriter(out, cache_dir=out / "cache") as writer:
        writer.write({"__key__": "0", "cls": "1"})
    assert (out / "shard-000000.tar").is_file()


def test_run_beside_another_one_is_refused(out):
    with begin(out), pytest.raises(ConfigError, match="another run is writing to"):
        begin(out)


# --- what it says


HOSTILE_SETTINGS = {
    "no JSON": b"{",
    "deep": b"[" * 100_000,
    "list": [],
    "no splits": {},
    "splits of no names": {"splits": ["train"]},
    "prefix of no text": {"splits": {"train": 7}},
    "folder above": {"splits": {"..": "train"}},
    "folder elsewhere": {"splits": {"/etc": "train"}},
    "folder below": {"splits": {"a/b": "train"}},
}


@pytest.mark.parametrize("first", HOSTILE_SETTINGS.values(), ids=HOSTILE_SETTINGS)
def test_settings_that_make_no_sense_begin_a_journal_anew(out, first):
    out.mkdir()
    forge(out, first)
    begin(out).close()
    assert lines(out)[0]["samples"] == 3


@pytest.mark.parametrize("first", HOSTILE_SETTINGS.values(), ids=HOSTILE_SETTINGS)
def test_settings_that_make_no_sense_give_no_shard_away(out, begun, first):
    forge(out, first, *lines(out)[1:])
    with pytest.raises(ConfigError, match=r"train-000000\.tar is there, and not from a run that"):
        begin(out)


@pytest.mark.parametrize(
    "change",
    [
        {"name": 7},
        {"samples": "1"},
        {"samples": True},
        {"size_bytes": None},
        {"md5": []},
        {"fields": ["cls"]},
        {"fields": {"cls": "1"}},
        {"below": None},
        {"more": 1},
        {"mtime_ns": 1.5},
    ],
)
def test_line_that_makes_no_sense_is_told_and_its_shard_written_again(out, begun, change, caplog):
    first, shard, fact = lines(out)
    forge(out, first, shard | change, fact)
    with begin(out) as journal:
        assert journal.written("train", NAME) is None
        assert journal.fact("kept 0") is None
        journal.note("train", begun)
    assert "is damaged: what it says last is done again" in caplog.text
    assert lines(out) == [first, shard]


def test_line_without_an_end_is_as_if_it_were_not_there(out, begun):
    path = out / JOURNAL_NAME
    path.write_bytes(path.read_bytes()[:-1])
    with begin(out) as journal:
        assert journal.written("train", NAME) == begun
        assert journal.fact("kept 0") is None


@contextmanager
def files_of_at_most(size):
    """Files take so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 50])
def test_full_disk_names_the_journal_that_cannot_be_begun(out, size):
    with (
        files_of_at_most(size),
        pytest.raises(FileAccessError, match="journal cannot be written: File too large"),
    ):
        begin(out)
    begin(out).close()  # the lock was given back


def test_full_disk_names_the_journal_that_grows(out):
    def note():
        with files_of_at_most((out / JOURNAL_NAME).stat().st_size + 9), begin(out) as journal:
            journal.note_fact("a", "b")

    begin(out).close()
    with pytest.raises(FileAccessError, match="journal cannot be written: File too large"):
        note()
    with begin(out) as journal:
        assert journal.fact("a") is None


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 255), st.sampled_from(["change", "cut", "insert"]))
def test_damaged_journal_never_claims_another_shard(out, begun, caplog, place, change, kind):
    path = out / JOURNAL_NAME
    before = path.read_bytes()
    data = bytearray(before)
    place %= len(data)
    if kind == "insert":
        data.insert(place, change)
    data[place] ^= change
    path.write_bytes(data[:place] if kind == "cut" else data)
    try:
        with begin(out) as journal:
            assert journal.written("train", NAME) in (None, begun)
            assert journal.fact("kept 0") in (None, "ff")
            assert journal.written("val", NAME) is None
    except ConfigError:
        pass
    finally:
        path.write_bytes(before)


def test_finished_run_is_not_begun_again_by_a_planted_index(out):
    """An index that another program left is not taken for the end of our run."""
    out.mkdir()
    Path(out / "wids.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"wids\.json is there, and not from a run"):
        begin(out, {"": "shard"})


@pytest.mark.parametrize("splits", [{"": "train"}, PREFIXES])
def test_folder_that_cannot_be_looked_into_is_named(tmp_path, splits):
    unknown = tmp_path / ("x" * 300)  # as one above that this user may not enter
    with pytest.raises(FileAccessError, match=r"x cannot be written: .*; look at the path"):
        begin(unknown, splits)


# --- the pattern of the shards

NAMES = [
    *("a b", "é", "[x]", "{y}", "{0..1}", "h#1", "q?1", "star*", "bs\\x", "\\", "co:lon", "s3:x"),
    *(
        "double::x",
        "::",
        "a:::b",
        "-dash",
        "-",
        "~",
        "~t",
        "@at",
        "a,b",
        " led",
        "..dots",
        "\udce9",
    ),
    *("pipe:ls", "{a}:\\:{b,c}", ".hidden"),
]


@pytest.mark.parametrize("number", range(len(NAMES)), ids=map(ascii, NAMES))
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_pattern_of_shards_reads_back(tmp_path, monkeypatch, number, shards, is_whole):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / NAMES[number] if is_whole else Path(NAMES[number])
    with ShardWriter(folder, max_samples=1, cache_dir=tmp_path / "cache") as writer:
        for sample in range(shards):
            writer.write({"__key__": str(sample), "cls": b"1"})
    urls = expand_urls(writer.urls)
    assert [Path(url) for url in urls] == [folder / f"shard-{n:06d}.tar" for n in range(shards)]
    assert not writer.urls.startswith(("-", "~", " "))  # the shell and the tools take it for a path


@pytest.mark.parametrize("name", ["nl\nx", "tab\tx", "del\x7f"])
def test_a_folder_that_no_pattern_can_name_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="no pattern could name the shards in it"):
        begin(tmp_path / name)
    assert not list(tmp_path.iterdir())
