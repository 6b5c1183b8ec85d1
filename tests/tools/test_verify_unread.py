"""`verify --repair` never says that nothing was lost where it cannot know it."""

import io
import tarfile

import pytest

from lightning_shards.tools import index, verify
from tests.tools.conftest import samples_of, write_members

KEYS = [f"{number:02d}" for number in range(10)]
GONE = "was there when the shard was indexed, and is not now"
PAGE = 4096


@pytest.fixture
def run(run_here):
    return run_here(verify.main)


@pytest.fixture
def shard(tmp_path):
    """A tar of ten samples of one field, each with other contents."""
    return write_members(tmp_path / "data" / "a.tar", members_of(KEYS))


def members_of(keys):
    return [(f"{key}.txt", key.encode() * 300) for key in keys]


def change(path, start, data):
    contents = bytearray(path.read_bytes())
    contents[start : start + len(data)] = data
    path.write_bytes(contents)


def header_of(path, name):
    with tarfile.open(path) as archive:
        return archive.getmember(name).offset


def repaired(run, path):
    """Keys that were saved, reasons for those that are lost, and the places that were not read."""
    status, document = run(path, "--repair", path.parent.parent / "out")
    assert status == 1
    [repair] = document["repairs"].values()
    saved = samples_of(repair["path"]).keys() if repair["path"] else set()
    assert len(saved) == repair["saved"]
    return set(saved), repair["lost"], repair["unread"]


# --- what an earlier index knows


def test_the_table_of_a_shard_serves_however_little_is_left_of_it(run, run_here, shard):
    assert run_here(index.main)(shard, "--checksums")[0] == 0
    whole = shard.read_bytes()
    for left in (1, 3, 7):
        shard.write_bytes(whole[: header_of(shard, f"{KEYS[left]}.txt") + 700])
        saved, lost, unread = repaired(run, shard)
        assert (saved, lost.keys(), unread) == (set(KEYS[:left]), set(KEYS[left:]), [])
        assert all("is not what it was when indexed" in reason for reason in lost.values())
        shard.write_bytes(whole)


@pytest.mark.parametrize("checksums", [["--checksums"], []])
@pytest.mark.parametrize("left", [0, 400])
def test_samples_of_which_nothing_is_left_are_lost(run, run_here, shard, left, checksums):
    assert run_here(index.main)(shard, *checksums)[0] == 0
    shard.write_bytes(shard.read_bytes()[:left])
    saved, lost, _ = repaired(run, shard)
    assert saved == set()
    assert {key: reason for key, reason in lost.items() if key} == dict.fromkeys(KEYS, GONE)


def test_without_checksums_samples_that_are_not_there_are_lost(run, run_here, shard):
    assert run_here(index.main)(shard)[0] == 0
    change(shard, header_of(shard, "04.txt"), bytes(512))
    saved, lost, unread = repaired(run, shard)
    assert saved | lost.keys() == set(KEYS)
    assert lost.keys() >= {"04"}
    assert unread


def test_a_table_of_other_members_at_the_same_places_is_not_of_the_shard(run, run_here, shard):
    assert run_here(index.main)(shard, "--checksums")[0] == 0
    new = [(f"new{key}", content) for key, content in members_of(KEYS[:4])]
    write_members(shard, new)
    change(shard, header_of(shard, "new02.txt"), b"x")
    saved, lost, _ = repaired(run, shard)
    assert saved == {"new00", "new01", "new03"}
    assert lost == dict.fromkeys(KEYS, GONE)


def test_a_damaged_shard_was_held_against_its_checksums(run, run_here, shard):
    assert run_here(index.main)(shard, "--checksums")[0] == 0
    shard.write_bytes(shard.read_bytes()[:700])
    assert run(shard)[1]["checksummed"] == 1


# --- what nothing says


def test_a_place_that_cannot_be_read_is_told(run, shard):
    start, stop = header_of(shard, "04.txt"), header_of(shard, "05.txt")
    change(shard, start, b"x")
    saved, lost, unread = repaired(run, shard)
    assert (saved, lost, len(unread)) == (set(KEYS) - {"04"}, {}, 1)
    assert f"of bytes {start:,} to {stop:,}" in unread[0]


def test_the_end_of_what_is_known_is_told(run, shard):
    start = header_of(shard, "04.txt")
    shard.write_bytes(shard.read_bytes()[:start])
    saved, lost, unread = repaired(run, shard)
    assert (saved, lost) == (set(KEYS[:4]), {})
    assert unread == [
        f"nothing can be read from byte {start:,} on, and what stood there is not known"
    ]


def test_the_count_of_what_is_lost_is_the_least(shard, tmp_path, capsys):
    change(shard, header_of(shard, "04.txt"), b"x")
    with pytest.raises(SystemExit, match="1"):
        verify.main([str(shard), "--repair", str(tmp_path / "out")])
    assert (
        "9 samples saved, at least 0 lost\n  nothing can be read of bytes"
        in capsys.readouterr().out
    )


def test_a_member_that_is_left_out_for_its_name_is_told(run, shard):
    change(shard, header_of(shard, "04.txt"), bytes(1024))
    saved, _, unread = repaired(run, shard)
    assert saved == set(KEYS) - {"04", "05"}
    assert "05.txt" in unread[1]


# --- archives that were glued together


@pytest.mark.parametrize("first", range(1, 8))
def test_nothing_is_missing_between_two_archives(run, tmp_path, first):
    paths = [
        write_members(tmp_path / f"{keys[0]}.tar", members_of(keys))
        for keys in (KEYS[:first], KEYS[first:])
    ]
    glued = tmp_path / "data" / "a.tar"
    glued.parent.mkdir()
    glued.write_bytes(b"".join(path.read_bytes() for path in paths))
    assert repaired(run, glued) == (set(KEYS), {}, [])


def test_pages_of_zeros_are_no_end_of_an_archive(run, tmp_path):
    """They hold the extended header that has the name of the next member."""
    path = tmp_path / "data" / "a.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, size, headers in (
            ("0.txt", 512, {}),
            ("a.txt", PAGE - 1024 - 512, {}),
            ("\u732b.txt", 5, {"comment": "x" * (PAGE - 1000)}),
            ("b.txt", 5, {}),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = size, headers
            archive.addfile(info, io.BytesIO(b"1" * size))
    assert header_of(path, "\u732b.txt") == PAGE
    change(path, PAGE, bytes(PAGE))
    saved, lost, unread = repaired(run, path)
    assert (saved, lost, len(unread)) == ({"0", "a", "b"}, {}, 2)
