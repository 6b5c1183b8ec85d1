"""A list is hashed again whenever it may have changed, and no more often."""

import hashlib
import os
from functools import partial

import pytest

from lightning_shards.errors import ConfigError, FileAccessError
from lightning_shards.shards.filters import list_digests
from lightning_shards.shards.filters.list_digests import remembered_digest
from lightning_shards.shards.private_files import CacheFolder
from tests.shards.filters.filtered_shards import applied, numbers_left, pack_texts

S = 10**9


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "out.txt"
    path.write_bytes(b"0003\n" * 300_000)
    return path


@pytest.fixture
def cache(tmp_path):
    return CacheFolder(tmp_path / "cache")


@pytest.fixture
def digest_at(path, cache):
    """The digest of the list at a number of seconds on the clock."""
    return lambda second: remembered_digest(str(path), cache, clock_ns=lambda: int(second * S))


@pytest.fixture
def readings(monkeypatch):
    """One entry for each time that a list was read."""
    readings, digest = [], hashlib.file_digest

    def counted(file, name):
        readings.append(name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return readings


def content_digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def change_first_key(path):
    """Another content of the same size in the same file, with the time of modification set back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"0004")
    while True:  # until the clock of the file system has ticked
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        if path.stat().st_ctime_ns != before.st_ctime_ns:
            return


def test_a_list_that_stays_is_read_twice_and_then_no_more(path, digest_at, readings):
    assert {digest_at(second) for second in (0, 2, 3, 1000, 1)} == {content_digest(path)}
    assert len(readings) == 2


def test_readings_near_each_other_are_not_enough(digest_at, readings):
    for second in (0, 0.5, 1.9):
        digest_at(second)
    assert len(readings) == 3
    digest_at(2.1)
    digest_at(2.2)
    assert len(readings) == 4


def test_a_clock_that_is_set_back_makes_no_two_seconds(digest_at, readings):
    for second in (100, 10, 11, 12, 13):
        digest_at(second)
    assert len(readings) == 4  # the one at 12 is 2 s after that at 10


def test_a_list_written_twice_within_one_tick_is_not_taken_for_the_old_one(
    path, digest_at, monkeypatch
):
    stamp_of = list_digests._stamp_of
    monkeypatch.setattr(list_digests, "_stamp_of", lambda file: [*stamp_of(file)[:2], 7, 7])
    before = digest_at(0)
    change_first_key(path)
    assert digest_at(3) == content_digest(path) != before
    # Only this reading is of the list as it is now; so the one at 3 s did not settle it.
    path.write_bytes(b"0005\n" * 300_000)
    assert digest_at(4) == content_digest(path)


def test_a_list_changed_in_place_is_read_again_though_its_time_was_set_back(path, digest_at):
    before = [digest_at(second) for second in (0, 3, 6)]
    change_first_key(path)
    assert digest_at(9) == content_digest(path) != before[-1]


def test_a_list_put_in_the_place_of_another_is_read_again(tmp_path, path, digest_at, monkeypatch):
    stamp_of = list_digests._stamp_of
    monkeypatch.setattr(list_digests, "_stamp_of", lambda file: [*stamp_of(file)[:2], 7, 7])
    before = [digest_at(second) for second in (0, 3, 6)]
    (tmp_path / "new").write_bytes(b"0004\n" * 300_000)
    (tmp_path / "new").rename(path)
    assert digest_at(9) == content_digest(path) != before[-1]


def test_a_list_that_changes_while_it_is_read_is_not_remembered(path, cache, digest_at, readings):
    digest = hashlib.file_digest

    def changing(file, name):
        path.write_bytes(path.read_bytes() + b"0007\n")
        return digest(file, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "file_digest", changing)
        digest_at(0)
    assert not list(cache.root.glob("kept/*"))
    digest_at(3)
    digest_at(4)
    assert len(readings) == 3


def test_of_a_small_list_nothing_is_remembered(path, cache, digest_at, readings):
    path.write_bytes(b"0003\n")
    assert {digest_at(second) for second in (0, 3, 6)} == {content_digest(path)}
    assert len(readings) == 3
    assert not cache.root.exists()


def test_lists_of_two_folders_are_told_apart(tmp_path, cache, monkeypatch):
    digests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "out.txt").write_bytes(name.encode() * 2_000_000)
        monkeypatch.chdir(tmp_path / name)
        digests += [
            remembered_digest("out.txt", cache, clock_ns=lambda t=t: t * S) for t in (0, 3, 6)
        ]
    assert len(set(digests)) == 2
    assert len(list(cache.root.glob("kept/*"))) == 2


def test_what_is_remembered_and_damaged_is_not_believed(path, cache, digest_at):
    expected = [digest_at(second) for second in (0, 3)][-1]
    (note,) = cache.root.glob("kept/*.digest")
    sound = note.read_bytes()
    spoilt = [sound[:-1], b"", b"{}", b"\x00" * len(sound), b"0 " + sound]
    spoilt += [sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in range(len(sound))]
    for data in spoilt:
        note.write_bytes(data)
        assert digest_at(6) == expected


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path, path):
    (tmp_path / "file").write_text("")
    digest_in = partial(remembered_digest, str(path))
    assert digest_in(CacheFolder(tmp_path / "file" / "cache")) == content_digest(path)


def test_what_others_may_write_is_refused(cache, digest_at):
    digest_at(0)
    (note,) = cache.root.glob("kept/*.digest")
    note.chmod(0o666)
    with pytest.raises(FileAccessError, match="may be written by other users"):
        digest_at(3)


def test_a_list_that_is_gone_is_named(path, digest_at):
    digest_at(0)
    path.unlink()
    with pytest.raises(ConfigError, match=r"the list .*out\.txt.* cannot be read"):
        digest_at(3)


def test_a_filter_follows_a_large_list_through_its_changes(tmp_path, path, readings, monkeypatch):
    monkeypatch.setattr(list_digests, "_APART_NS", 0)
    urls = pack_texts(tmp_path / "data")

    def left():
        return numbers_left(applied(urls, tmp_path / "cache", exclude=str(path)))

    without_3 = [number for number in range(30) if number != 3]
    assert left() == without_3
    num_first = len(readings)
    assert left() == without_3
    assert len(readings) == num_first  # no list is read for a later start
    change_first_key(path)
    assert left() == [number for number in without_3 if number != 4]
