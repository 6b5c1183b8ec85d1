"""`verify --repair` saves only what is whole, lists what it leaves out, and overwrites nothing."""

import io
import json
import random
import tarfile

import pytest

from lightning_shards.shards.tar.plain_runs import count_samples
from lightning_shards.tools import index, verify
from tests.tools.conftest import (
    contents,
    flip,
    members_of,
    samples_of,
    write_members,
    write_samples,
)

GONE = "was there when the shard was indexed, and is not now"


@pytest.fixture
def run(run_here):
    return run_here(verify.main)


@pytest.fixture
def folder(tmp_path):
    return write_samples(tmp_path / "data", [4, 5])


@pytest.fixture
def shard(folder):
    return folder / "train-000001.tar"


@pytest.fixture
def repaired(run, tmp_path):
    """Repairs one shard; gives what its copy holds, and the report on it."""

    def call(path):
        target = tmp_path / f"out{len(list(tmp_path.glob('out*')))}"
        status, document = run(path, "--repair", target)
        assert status == 1
        assert json.loads((target / "repair.json").read_text()) == document["repairs"]
        [repair] = document["repairs"].values()
        saved = samples_of(repair["path"]) if repair["path"] else {}
        assert len(saved) == repair["saved"]
        return saved, repair

    return call


def test_a_repair_leaves_the_original_and_is_sound(run, folder, shard, tmp_path):
    flip(shard, members_of(shard)[7].offset)
    before = contents(folder)
    status, document = run(folder / "*.tar", "--repair", tmp_path / "out")
    assert (status, list(document["repairs"])) == (1, [str(shard)])
    assert contents(folder) == before
    assert sorted(contents(tmp_path / "out")) == ["repair.json", shard.name]
    assert run(tmp_path / "out" / "*.tar")[0] == 0


def test_only_the_samples_beside_the_damaged_header_are_lost(repaired, shard):
    original = samples_of(shard)
    start, stop = members_of(shard)[7].offset, members_of(shard)[8].offset
    flip(shard, start)  # the label of 00006
    saved, repair = repaired(shard)
    assert repair["lost"].keys() == {"00006", "00007"}
    assert "stands beside the damage" in repair["lost"]["00006"]
    assert repair["unread"] == [
        f"bytes {start:,} to {stop:,} cannot be read; what stood there is not known"
    ]
    del original["00006"], original["00007"]
    assert saved == original


def test_the_end_of_what_can_be_read_is_told(repaired, shard):
    start = members_of(shard)[9].offset
    shard.write_bytes(shard.read_bytes()[:start])
    saved, repair = repaired(shard)
    assert (saved.keys(), repair["lost"]) == ({"00004", "00005"}, repair["lost"])
    assert repair["unread"] == [
        f"bytes {start:,} to {start:,} cannot be read; what stood there is not known"
    ]


def test_what_an_earlier_index_names_and_is_gone_is_lost(repaired, run_here, folder, shard):
    assert run_here(index.main)(folder / "*.tar")[0] == 0
    shard.write_bytes(shard.read_bytes()[: members_of(shard)[9].offset])
    lost = repaired(shard)[1]["lost"]
    assert "stands beside the damage" in lost.pop("00006")
    assert lost == {"00007": GONE, "00008": GONE}
    shard.write_bytes(b"")
    _, repair = repaired(shard)
    assert repair["unread"] == ["it is empty"]
    assert repair["lost"] == dict.fromkeys((f"{key:05d}" for key in range(4, 9)), GONE)


def test_a_changed_sample_is_left_out(repaired, run_here, folder, shard):
    original = samples_of(shard)
    assert run_here(index.main)(folder / "*.tar", "--checksums")[0] == 0
    flip(shard, members_of(shard)[4].offset_data)
    saved, repair = repaired(shard)
    assert repair["lost"] == {"00005": "member cls is not what it was when indexed"}
    del original["00005"]
    assert saved == original


def test_what_would_not_read_back_makes_no_sample(repaired, tmp_path):
    names = ["a.cls", "b.cls", "b.cls", "c.cls", "d.__key__", "e.cls"]
    path = write_members(tmp_path / "data" / "a.tar", [(name, b"1") for name in [*names, "f.cls"]])
    flip(path, members_of(path)[-1].offset)
    saved, repair = repaired(path)
    assert (saved.keys(), repair["lost"].keys()) == ({"a", "c"}, {"b", "d", "e"})


@pytest.mark.parametrize("place", ["the shards", "a link to them", "a file", "another folder"])
def test_a_folder_with_anything_in_it_is_refused(run, folder, shard, tmp_path, place):
    flip(shard, 0)
    targets = {"the shards": folder, "a file": shard}
    target = targets.get(place, tmp_path / "target")
    if place == "a link to them":
        target.symlink_to(folder)
    elif place == "another folder":
        target.mkdir()
        (target / ".hidden").touch()
    before = contents(tmp_path)
    assert run(folder / "*.tar", "--repair", target) == (2, None)
    assert contents(tmp_path) == before


def test_shards_of_one_name_are_refused(run, folder, tmp_path):
    other = write_samples(tmp_path / "other", [3])
    assert run(folder / "*.tar", other / "*.tar", "--repair", tmp_path / "out") == (2, None)


# --- any damage


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_never_gives_a_sample_that_was_not_there(run, shard, tmp_path, seed):
    """Headers and ends; data is left alone, as no checksum was made before."""
    draws = random.Random(seed)
    original = samples_of(shard)
    members = members_of(shard)
    data = bytearray(shard.read_bytes())
    for _ in range(draws.randint(1, 3)):
        data[draws.choice(members).offset + draws.randrange(512)] ^= 1 << draws.randrange(8)
    if draws.random() < 0.5:
        del data[draws.randrange(len(data)) :]
    check_damage(run, shard, original, data, tmp_path)


def check_damage(run, shard, original, data, tmp_path):
    shard.write_bytes(data)
    status, document = run(shard, "--repair", tmp_path / "out")
    for repair in document["repairs"].values():
        if repair["path"]:
            saved = samples_of(repair["path"])
            assert {key: original.get(key) for key in saved} == saved
            assert count_samples(repair["path"]) == len(saved) == repair["saved"]
            assert not set(repair["lost"]) & saved.keys()
    if status == 0:
        assert samples_of(shard) == original


KEYS = ["before", "café", "漢字", "日本", "n" * 120, "m" * 600, "after"]


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_no_member_is_saved_under_another_name(run, tmp_path, kind, seed):
    """Where the extended header that had its name is lost, its own header has a stand-in."""
    draws = random.Random(seed)
    path = tmp_path / "data" / "a.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w", format=kind) as archive:
        for key in KEYS:
            for suffix in ("jpg", "cls", "txt"):
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size, member.mtime = len(f"{key}{suffix}".encode()), 0.5
                archive.addfile(member, io.BytesIO(f"{key}{suffix}".encode()))
    original, data = samples_of(path), bytearray(path.read_bytes())
    for member in draws.sample(members_of(path), 2):
        block = member.offset // 512 * 512
        data[block : block + 512] = bytes(512)
    check_damage(run, path, original, data, tmp_path)
