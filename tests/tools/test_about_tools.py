"""What the tools guarantee, in the names of its tests: what `verify` finds and `--repair` saves."""

import io
import json
import random
import tarfile

import pytest

from lightning_shards.shards.members import scan_members
from lightning_shards.tools import index, verify
from tests.tools.conftest import contents, flip, members_of, samples_of, write_members


@pytest.fixture
def run(run_here):
    return run_here(verify.main)


@pytest.fixture
def shard(folder):
    return folder / "train-000001.tar"


def of(rule, document):
    return [each for each in document["findings"] if each["rule"] == rule]


@pytest.mark.parametrize(
    ("by", "rule"),
    [("--checksums", "changed member"), ("members", "changed member"), ("wids", "changed shard")],
)
def test_a_changed_byte_shows_by_kept_tables_published_ones_and_md5s(
    run, run_here, folder, shard, tmp_path, by, rule
):
    other = ["--cache-dir", tmp_path / "other"]  # what is kept stays on another machine
    given = [by] if by == "--checksums" else ["--format", by, "--checksums", *other]
    assert run_here(index.main)(folder / "*.tar", *given)[0] == 0
    if by != "wids":
        (folder / "wids.json").unlink(missing_ok=True)
    wanted = members_of(shard)[4]  # a label: nothing but a checksum can tell
    flip(shard, wanted.offset_data)
    status, document = run(folder / "*.tar")
    [found] = document["findings"]
    assert (status, found["rule"], found["shard"]) == (1, rule, str(shard))
    assert document["verdict"] == "1 problem; 2 of 2 shards had checksums"
    if rule == "changed member":
        assert (found["sample"], found["byte"]) == ("00005", wanted.offset_data)
        assert "00005.cls" in found["message"]
    else:
        assert "its MD5 is " in found["message"]


def test_an_image_that_cannot_be_decoded_is_named(run, folder, shard):
    wanted = members_of(shard)[3]
    data = bytearray(shard.read_bytes())
    data[wanted.offset_data : wanted.offset_data + 20] = bytes(20)
    shard.write_bytes(data)
    status, document = run(folder / "*.tar")
    assert status == 1
    [found] = of("undecodable member", document)
    assert (found["sample"], found["byte"]) == ("00005", wanted.offset_data)
    assert "1 images cannot be decoded (SampleError: " in found["message"]


@pytest.mark.parametrize(
    ("half_written", "added", "told"), [(False, 1 << 19, 0), (True, 0, 1), (False, 1 << 20, 1)]
)
def test_zeros_behind_the_end_are_told(run, tmp_path, half_written, added, told):
    """They may be members that were never written: a file that was preallocated, or half copied."""
    members = [(f"{number:04d}.bin", b"x" * 9000) for number in range(400)]  # 3.9 MB
    shard = write_members(tmp_path / "data" / "a.tar", members)
    data = shard.read_bytes()
    if half_written:
        half = data.index(b"0200.bin")
        data = data[:half] + bytes(len(data) - half)
    shard.write_bytes(data + bytes(added))
    status, document = run(shard)
    assert (status, [each["rule"] for each in document["findings"]]) == (
        told,
        ["unwritten end"] * told,
    )


# --- what is said at the end


def test_the_verdict_says_how_many_shards_had_no_checksums(run, folder):
    said = run(folder / "*.tar")[1]["verdict"]
    assert said.startswith("0 problems; 0 of 2 shards had checksums; in others no changed")
    assert "index --checksums" in said


# --- `--repair` saves only what is whole, lists what it leaves out, and overwrites nothing


GONE = "was there when the shard was indexed, and is not now"


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


def test_a_repair_loses_the_samples_beside_the_damaged_header_alone(run, folder, shard, tmp_path):
    expected = samples_of(shard)
    start, stop = members_of(shard)[7].offset, members_of(shard)[8].offset
    flip(shard, start)  # the label of 00006
    before = contents(folder)
    status, document = run(folder / "*.tar", "--repair", tmp_path / "out")
    [damaged] = of("damaged shard", document)
    assert (status, list(document["repairs"])) == (1, [str(shard)])
    assert f", at byte {start};" in damaged["message"]
    repair = document["repairs"][str(shard)]
    assert repair["lost"].keys() == {"00006", "00007"}
    assert "stands beside the damage" in repair["lost"]["00006"]
    assert repair["unread"] == [
        f"bytes {start:,} to {stop:,} cannot be read; what stood there is not known"
    ]
    del expected["00006"], expected["00007"]
    assert samples_of(tmp_path / "out" / shard.name) == expected
    assert contents(folder) == before
    assert sorted(contents(tmp_path / "out")) == ["repair.json", shard.name]
    assert run(tmp_path / "out" / "*.tar")[0] == 0


def test_what_an_earlier_index_names_and_is_gone_is_lost(repaired, run_here, folder, shard):
    assert run_here(index.main)(folder / "*.tar")[0] == 0
    shard.write_bytes(shard.read_bytes()[: members_of(shard)[9].offset])
    lost = repaired(shard)[1]["lost"]
    assert "stands beside the damage" in lost.pop("00006")
    assert lost == {"00007": GONE, "00008": GONE}


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


def test_a_folder_with_anything_in_it_is_refused(run, folder, shard, tmp_path):
    flip(shard, 0)
    before = contents(tmp_path)
    for target in (folder, shard):
        assert run(folder / "*.tar", "--repair", target) == (2, None)
    assert contents(tmp_path) == before


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
            assert scan_members(repair["path"]).num_samples == len(saved) == repair["saved"]
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
