"""`lightning-shards verify` finds every damage, names its place, and saves only what is whole."""

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.tar.plain_runs import count_samples
from lightning_shards.tools import index, verify
from lightning_shards.tools.verify import image_decoder
from tests.tools.conftest import contents, jpeg, samples_of, write_members, write_samples

COUNTS = [4, 5]


@pytest.fixture
def run(run_here):
    return run_here(verify.main)


@pytest.fixture
def folder(tmp_path):
    return write_samples(tmp_path / "data", COUNTS)


@pytest.fixture
def shard(folder):
    return folder / "train-000001.tar"


@pytest.fixture
def indexed(folder, run_json, tmp_path):
    """The folder once all of it was read and indexed, with checksums."""
    cache = ["--cache-dir", tmp_path / "cache", "--processes", 1]
    assert run_json(index.main, [folder / "*.tar", "--checksums", *cache])[0] == 0
    return folder


def of(rule, document):
    return [each for each in document["findings"] if each["rule"] == rule]


def flip(path, byte):
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def members_of(path):
    with tarfile.open(path) as archive:
        return archive.getmembers()


def test_sound_shards_are_well(run, indexed):
    status, document = run(indexed / "*.tar")
    assert (status, document["samples"], document["findings"]) == (0, 9, [])


def test_a_changed_byte_is_named_by_shard_sample_and_offset(run, indexed, shard):
    wanted = members_of(shard)[4]  # a label: nothing but a checksum can tell
    flip(shard, wanted.offset_data)
    status, document = run(indexed / "*.tar")
    assert status == 1
    [found] = of("changed member", document)
    assert (found["shard"], found["sample"], found["byte"]) == (
        str(shard),
        "00005",
        wanted.offset_data,
    )
    assert "00005.cls" in found["message"]


def test_a_run_in_between_does_not_hide_a_changed_byte(run, indexed, shard, tmp_path):
    flip(shard, members_of(shard)[4].offset_data)
    with pytest.raises(DamagedShardError, match=r"first in '00005\.cls'"):
        TableStore(CacheFolder(tmp_path / "cache")).table_of(shard)
    status, document = run(indexed / "*.tar")
    assert status == 1
    assert [each["sample"] for each in of("changed member", document)] == ["00005"]


def test_without_checksums_only_the_md5_of_an_index_can_tell(run, indexed, shard, tmp_path):
    flip(shard, members_of(shard)[4].offset_data)
    status, document = run(indexed / "*.tar", "--cache-dir", tmp_path / "other")
    assert status == 1
    [found] = of("changed shard", document)
    assert "md5sum" in found["message"]


def test_an_image_that_cannot_be_decoded_is_named(run, folder, shard):
    wanted = members_of(shard)[3]
    data = bytearray(shard.read_bytes())
    data[wanted.offset_data : wanted.offset_data + 20] = bytes(20)
    shard.write_bytes(data)
    status, document = run(folder / "*.tar")
    assert status == 1
    [found] = of("undecodable member", document)
    assert (found["sample"], found["byte"]) == ("00005", wanted.offset_data)
    assert run(folder / "*.tar", "--decode", "none")[0] == 0


def test_every_cut_is_found(run, folder, shard):
    whole = shard.read_bytes()
    end = max(each.offset_data + each.size for each in members_of(shard))
    for size in range(0, end, 1024 + 100):
        shard.write_bytes(whole[:size])
        status, document = run(shard, "--decode", "none")
        assert status == 1, size
        assert of("damaged shard", document), size


def test_a_damaged_header_is_named_with_the_member_before(run, folder, shard):
    third = members_of(shard)[2]
    flip(shard, third.offset)
    status, document = run(folder / "*.tar")
    [found] = of("damaged shard", document)
    assert status == 1
    assert (found["byte"], found["sample"]) == (third.offset, "00004.cls")


def test_shards_that_are_gone_or_were_written_anew_are_named(run, indexed, shard):
    (indexed / "train-000000.tar").unlink()
    write_members(shard, [("x.cls", b"1")])
    status, document = run(indexed / "*.tar")
    assert status == 1
    assert Path(of("missing shard", document)[0]["shard"]).name == "train-000000.tar"
    assert {each["shard"] for each in of("changed shard", document)} == {str(shard)}


def test_the_order_of_members_and_keys_that_come_twice_are_named(run, tmp_path):
    names = ["a.x", "b.x", "a.y", "c.x", "c.y", "b.x"]
    path = write_members(tmp_path / "a.tar", [(name, b"1") for name in names])
    status, document = run(path)
    assert status == 1
    assert [each["sample"] for each in of("split sample", document)] == ["a"]
    assert [each["sample"] for each in of("duplicate key", document)] == ["b"]


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_whose_ends_nothing_protects_are_counted(run, tmp_path, tar_format):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name in ("n" * 120 + ".cls", "m" * 96 + ".cls", "k" * 120 + ".cls"):
            archive.addfile(tarfile.TarInfo(name))
    status, document = run(path)
    [found] = of("unprotected name", document)
    assert (status, found["count"], found["is_failure"]) == (0, 2, False)
    assert "of 0 not even the beginnings" in found["message"]


def test_a_name_that_changed_since_the_index_is_named_by_its_shard(run, tmp_path, run_json):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("n" * 120 + ".cls"))
    cache = ["--cache-dir", tmp_path / "cache", "--processes", 1]
    assert run_json(index.main, [path, "--checksums", *cache])[0] == 0
    (tmp_path / "wids.json").unlink()  # its MD5 would tell
    flip(path, path.read_bytes().index(b".cls") + 1)
    status, document = run(path)
    [found] = of("changed shard", document)
    assert (status, found["message"].split(" are not")[0]) == (1, "the names of its members")


# --- repair


def repaired(run, shards, target):
    status, document = run(shards, "--repair", target)
    assert status == 1
    return document["repairs"]


def test_a_repair_leaves_the_original_and_is_sound(run, folder, shard, tmp_path):
    flip(shard, members_of(shard)[7].offset)
    before = contents(folder)
    repairs = repaired(run, folder / "*.tar", tmp_path / "out")
    assert contents(folder) == before
    assert list(repairs) == [str(shard)]
    assert sorted(contents(tmp_path / "out")) == ["repair.json", shard.name]
    assert json.loads((tmp_path / "out" / "repair.json").read_text()) == repairs
    assert run(tmp_path / "out" / "*.tar")[0] == 0


def test_a_sample_beside_the_damage_is_lost_unless_it_is_whole(run, folder, shard, tmp_path):
    original = samples_of(shard)
    flip(shard, members_of(shard)[7].offset)  # the label of 00006
    [repair] = repaired(run, folder / "*.tar", tmp_path / "out").values()
    assert list(repair["lost"]) == ["00006"]
    del original["00006"]
    assert samples_of(tmp_path / "out" / shard.name) == original


def test_a_table_with_checksums_saves_what_lies_under_a_damaged_header(
    run, indexed, shard, tmp_path
):
    original = samples_of(shard)
    flip(shard, members_of(shard)[7].offset)
    [repair] = repaired(run, indexed / "*.tar", tmp_path / "out").values()
    assert repair["lost"] == {}
    assert samples_of(tmp_path / "out" / shard.name) == original


def test_a_changed_sample_is_left_out(run, indexed, shard, tmp_path):
    original = samples_of(shard)
    flip(shard, members_of(shard)[4].offset_data)
    [repair] = repaired(run, indexed / "*.tar", tmp_path / "out").values()
    assert list(repair["lost"]) == ["00005"]
    del original["00005"]
    assert samples_of(tmp_path / "out" / shard.name) == original


def test_an_old_table_of_another_shard_saves_nothing_away(run, indexed, shard, tmp_path):
    members = [(f"new{number}.{suffix}", b"%d" % number) for number in range(9) for suffix in "xy"]
    write_members(shard, members)
    shard.write_bytes(shard.read_bytes()[: members_of(shard)[-1].offset_data])
    repairs = repaired(run, indexed / "*.tar", tmp_path / "out")
    assert repairs[str(shard)]["saved"] == 8


def test_members_are_brought_together_and_images_that_fail_left_out(run, tmp_path):
    members = [("a.jpg", jpeg(1)), ("b.jpg", b"no image"), ("a.cls", b"1"), ("b.cls", b"2")]
    members += [("c.jpg", jpeg(2)), ("c.cls", b"3"), ("a.cls", b"again")]
    write_members(tmp_path / "data" / "a.tar", members)
    [repair] = repaired(run, tmp_path / "data" / "a.tar", tmp_path / "out").values()
    assert sorted(repair["lost"]) == ["a (again)", "b"]
    assert samples_of(tmp_path / "out" / "a.tar") == {
        "a": {"jpg": jpeg(1), "cls": b"1"},
        "c": {"jpg": jpeg(2), "cls": b"3"},
    }
    assert [each.name for each in members_of(tmp_path / "out" / "a.tar")][:2] == ["a.jpg", "a.cls"]


def test_what_holds_nothing_to_save_leaves_no_file(run, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.tar").write_bytes(b"x" * 4096)
    (tmp_path / "data" / "b.tar").write_bytes(b"")
    repairs = repaired(run, tmp_path / "data" / "*.tar", tmp_path / "out")
    assert [repair["path"] for repair in repairs.values()] == [None, None]
    assert list(contents(tmp_path / "out")) == ["repair.json"]


def test_a_repair_into_the_folder_itself_is_refused(run, folder, shard):
    flip(shard, 0)
    before = contents(folder)
    assert run(folder / "*.tar", "--repair", folder)[0] == 2
    assert contents(folder) == before


@pytest.mark.parametrize("seed", range(60))
def test_random_damage_never_gives_a_sample_that_was_not_there(run, folder, shard, tmp_path, seed):
    """Headers, ends and whole blocks; data is left alone, as no checksum was made before."""
    draws = random.Random(seed)
    original = samples_of(shard)
    members = members_of(shard)
    data = bytearray(shard.read_bytes())
    for _ in range(draws.randint(1, 3)):
        header = draws.choice(members).offset
        data[header + draws.randrange(512)] ^= 1 << draws.randrange(8)
    if draws.random() < 0.5:
        del data[draws.randrange(len(data)) :]
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


def test_packed_images_are_decoded_and_other_members_are_not():
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, "PNG")
    assert image_decoder("a.png.gz")(gzip.compress(file.getvalue())).size == (4, 3)
    assert image_decoder("PNG")(file.getvalue()).size == (4, 3)
    for suffix in ("txt.gz", "bin", "gz", "cls"):
        assert image_decoder(suffix) is None
