"""`verify --repair` saves no member under another name, also where extended headers are lost."""

import io
import random
import tarfile

import pytest

from lightning_shards.dataprep.inspection import salvage
from lightning_shards.shards.tar.plain_runs import count_samples
from lightning_shards.tools import index, verify
from tests.tools.conftest import samples_of, write_members

KEYS = ["before", "café", "漢字", "日本", "n" * 120, "m" * 600, "after"]
FORMATS = {"PAX": tarfile.PAX_FORMAT, "GNU": tarfile.GNU_FORMAT}
BLOCK = 512


@pytest.fixture
def run(run_here):
    return run_here(verify.main)


@pytest.fixture(params=FORMATS)
def shard(request, tmp_path):
    """A tar of samples with long and foreign names; each has other contents."""
    path = tmp_path / "data" / "a.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w", format=FORMATS[request.param]) as archive:
        for key in KEYS:
            for suffix in ("jpg", "cls", "txt"):
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size, info.mtime = len(f"{key}{suffix}".encode()), 0.5
                archive.addfile(info, io.BytesIO(f"{key}{suffix}".encode()))
    return path


def flip(data, byte):
    data[byte] ^= 1


def lose_block(data, byte):
    start = byte // BLOCK * BLOCK
    data[start : start + BLOCK] = bytes(BLOCK)


def extents(path):
    """For each member: its name, and the offsets of its first header, its own one, and its data."""
    with tarfile.open(path) as archive:
        return [
            (each.name, each.offset, each.offset_data - BLOCK, each.offset_data) for each in archive
        ]


def change(path, damage, *offsets):
    data = bytearray(path.read_bytes())
    for offset in offsets:
        damage(data, offset)
    path.write_bytes(data)


def extended(path, *wanted):
    """The offsets of the extended headers of these members."""
    found = [first for name, first, own, _ in extents(path) if name in wanted and first < own]
    assert len(found) == len(wanted)
    return found


def repaired(run, path, original):
    """What a repair saves, which was all there before; and what it tells as lost."""
    status, document = run(path, "--repair", path.parent.parent / "out", "--decode", "none")
    if status == 0:
        return original, {}
    [found] = document["repairs"].values()
    saved = samples_of(found["path"]) if found["path"] else {}
    assert {key: original.get(key) for key in saved} == saved
    assert found["saved"] == len(saved)
    assert not found["lost"].keys() & saved.keys()
    if saved:
        assert count_samples(found["path"]) == len(saved)
    return saved, found["lost"]


def damages(path, name):
    """How an extended header of this member, or what it says, can be lost."""
    [first] = extended(path, name)
    yield flip, first + 100
    yield lose_block, first
    yield lose_block, first + BLOCK
    if path.read_bytes()[first + 156 : first + 157] == b"x":
        yield flip, first + BLOCK


def test_a_member_whose_extended_header_is_lost_costs_its_sample_and_no_other(run, shard):
    original, whole = samples_of(shard), shard.read_bytes()
    key = "m" * 600  # in both formats its name needs one
    for suffix in ("jpg", "cls", "txt"):
        for damage, offset in damages(shard, f"{key}.{suffix}"):
            change(shard, damage, offset)
            saved, lost = repaired(run, shard, original)
            assert lost.keys() == {key}
            assert saved.keys() == original.keys() - {key}
            shard.write_bytes(whole)


@pytest.mark.parametrize("shard", ["PAX"], indirect=True)
def test_stand_ins_of_two_members_make_no_sample(run, shard):
    original = samples_of(shard)
    names = ["漢字.jpg", "日本.cls"]
    change(shard, flip, *extended(shard, *names))
    saved, lost = repaired(run, shard, original)
    assert saved.keys() == original.keys() - {"漢字", "日本"}
    assert lost.keys() == {"漢字", "日本"}


def test_a_table_with_checksums_gives_such_a_member_its_name(run, run_here, shard):
    original = samples_of(shard)
    assert run_here(index.main)(shard, "--checksums")[0] == 0
    whole = shard.read_bytes()
    for damage, offset in damages(shard, f"{'m' * 600}.jpg"):
        change(shard, damage, offset)
        assert repaired(run, shard, original) == (original, {})
        shard.write_bytes(whole)


@pytest.mark.parametrize("shard", ["PAX"], indirect=True)
def test_a_name_that_was_damaged_unseen_is_that_of_the_table(run, run_here, shard):
    original = samples_of(shard)
    assert run_here(index.main)(shard, "--checksums")[0] == 0
    change(shard, flip, shard.read_bytes().index("é".encode()) + 1)  # nothing protects it
    change(shard, flip, *extended(shard, "日本.cls"))
    assert repaired(run, shard, original) == (original, {})


@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_random_damage_of_headers_gives_no_name_that_was_not_there(
    run, run_here, shard, seed, is_indexed
):
    draws = random.Random(seed)
    original = samples_of(shard)
    if is_indexed:
        assert run_here(index.main)(shard, "--checksums")[0] == 0
    members = extents(shard)
    for _ in range(draws.randint(1, 3)):
        _, first, own, _ = draws.choice(members)
        if draws.random() < 0.5:
            change(shard, lose_block, draws.randrange(first, own + 1, BLOCK))
        else:
            change(shard, flip, draws.choice([first, own]) + draws.randrange(148))
    saved, lost = repaired(run, shard, original)
    if is_indexed:
        assert (saved, lost) == (original, {})


@pytest.mark.parametrize("number", range(3))
def test_a_damaged_header_of_a_member_costs_its_own_sample_alone(run, tmp_path, number):
    """The size in it shows that the next header is no end of a chain."""
    members = [(f"{key}.{suffix}", b"1" * 900) for key in "abc" for suffix in ("jpg", "cls", "txt")]
    path = write_members(tmp_path / "data" / "a.tar", members)
    original = samples_of(path)
    change(path, flip, extents(path)[3 + number][2] + 50)
    saved, lost = repaired(run, path, original)
    assert (saved.keys(), lost.keys()) == ({"a", "c"}, {"b"})


@pytest.mark.parametrize("is_indexed", [False, True])
def test_hidden_files_make_no_sample_of_a_folder(run, run_here, tmp_path, is_indexed):
    members = []
    for number in range(3):
        for suffix in ("jpg", "cls"):
            members += [(f"train/._{number}.{suffix}", b"mac"), (f"train/{number}.{suffix}", b"1")]
    path = write_members(tmp_path / "data" / "a.tar", members)
    if is_indexed:
        run_here(index.main)(path, "--checksums")  # which finds that members are not adjacent
    status, document = run(path, "--repair", tmp_path / "out", "--decode", "none")
    assert (status, {each["rule"] for each in document["findings"] if each["is_failure"]}) == (
        1,
        {"split sample"},
    )
    [found] = document["repairs"].values()
    assert (found["saved"], found["lost"]) == (3, {})
    saved = samples_of(found["path"])
    assert saved == {f"train/{number}": {"jpg": b"1", "cls": b"1"} for number in range(3)}


def test_a_copy_that_would_read_back_otherwise_is_not_kept(run, tmp_path, monkeypatch):
    path = write_members(tmp_path / "data" / "a.tar", [(f"{key}.cls", b"1") for key in "abcde"])
    change(path, flip, extents(path)[1][2] + 50)
    real = salvage._header
    monkeypatch.setattr(
        salvage, "_header", lambda member: real(member._replace(name=f"x{member.name}"))
    )
    document = run(path, "--repair", tmp_path / "out", "--decode", "none")[1]
    [found] = document["repairs"].values()
    assert (found["path"], found["saved"]) == (None, 0)
    assert "a.tar cannot be saved" in found["lost"][""]
    assert not (tmp_path / "out" / "a.tar").exists()
