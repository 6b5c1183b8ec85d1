"""`lightning-shards verify` finds every damage, names its place, and says what it had to go by."""

import hashlib
import json
from contextlib import suppress

import pytest

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore
from lightning_shards.tools import index, verify
from tests.tools.conftest import flip, members_of, samples_of, write_members, write_samples

NAMES = ["train-000000.tar", "train-000001.tar"]


@pytest.fixture
def run(run_here):
    return run_here(verify.main)


@pytest.fixture
def folder(tmp_path):
    return write_samples(tmp_path / "data", [4, 5])


@pytest.fixture
def shard(folder):
    return folder / NAMES[1]


@pytest.fixture
def indexed(folder, run_here):
    """The folder once all of it was read and indexed, with checksums."""
    assert run_here(index.main)(folder / "*.tar", "--checksums")[0] == 0
    return folder


def of(rule, document):
    return [each for each in document["findings"] if each["rule"] == rule]


def faults(document):
    return [
        (each["rule"], each["shard"].rpartition("/")[2])
        for each in document["findings"]
        if each["is_failure"]
    ]


def test_a_changed_byte_is_named_by_shard_sample_and_offset(run, indexed, shard, tmp_path):
    wanted = members_of(shard)[4]  # a label: nothing but a checksum can tell
    flip(shard, wanted.offset_data)
    with suppress(DamagedShardError):  # a run in between does not hide it
        TableStore(CacheFolder(tmp_path / "cache")).table_of(shard)
    status, document = run(indexed / "*.tar")
    assert status == 1
    [found] = of("changed member", document)
    place = (str(shard), "00005", wanted.offset_data)
    assert (found["shard"], found["sample"], found["byte"]) == place
    assert "00005.cls" in found["message"]


def test_the_table_beside_a_shard_shows_a_changed_byte(run, run_here, folder, shard, tmp_path):
    other = ["--cache-dir", tmp_path / "other"]
    assert run_here(index.main)(folder / "*.tar", "--format", "members", *other)[0] == 0
    flip(shard, members_of(shard)[4].offset_data)
    status, document = run(folder / "*.tar")
    assert (status, faults(document)) == (1, [("changed member", shard.name)])


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
    assert "1 images cannot be decoded (SampleError: " in found["message"]


def test_a_damaged_header_is_named_with_its_byte(run, folder, shard):
    third = members_of(shard)[2]
    flip(shard, third.offset)
    status, document = run(folder / "*.tar")
    [found] = of("damaged shard", document)
    assert status == 1
    assert f", at byte {third.offset};" in found["message"]


@pytest.mark.parametrize(
    ("half_written", "added", "told"),
    [
        (False, 0, []),
        (False, 10_240, []),
        (True, 0, [("unwritten end", True)]),
        (False, 17 << 20, [("unwritten end", True)]),
    ],
)
@pytest.mark.parametrize("tool", [verify, index])
def test_zeros_behind_the_end_are_told(run_here, tmp_path, tool, half_written, added, told):
    """They may be members that were never written: a file that was preallocated, or half copied."""
    members = [(f"{number:04d}.bin", b"x" * 900) for number in range(400)]  # 600 KB
    shard = write_members(tmp_path / "data" / "a.tar", members)
    data = shard.read_bytes()
    if half_written:
        half = data.index(b"0200.bin")
        data = data[:half] + bytes(len(data) - half)
    shard.write_bytes(data + bytes(added))
    status, document = run_here(tool.main)(shard)
    assert [(each["rule"], each["is_failure"]) for each in document["findings"]] == told
    assert bool(status) == any(is_failure for _, is_failure in told)


def test_remote_shards_are_refused_with_the_remedy(capsys):
    with pytest.raises(SystemExit) as ended:
        verify.main(["https://u:s3cr3t@localhost/a.tar"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "verify reads local shards only, and 1 of 1 are remote" in said
    assert "s3cr3t" not in said


# --- what lies beside the shards


def write_wids(path, entries):
    content = {"wids_version": 1, "shardlist": [{"url": url, **facts} for url, facts in entries]}
    path.write_text(json.dumps(content))


def facts_of(path, **more):
    data = path.read_bytes()
    md5 = hashlib.md5(data).hexdigest()
    return {"nsamples": len(samples_of(path)), "filesize": len(data), "md5sum": md5} | more


def test_a_count_of_one_file_does_not_hide_the_wrong_one_of_another(run, folder):
    write_wids(folder / "wids.json", [(name, facts_of(folder / name)) for name in NAMES])
    (folder / "sizes.json").write_text(json.dumps({NAMES[0]: 999}))
    status, document = run(folder / "*.tar")
    assert (status, faults(document)) == (1, [("changed shard", NAMES[0])])
    assert "its nsamples is 4, 999 by the index" in document["findings"][0]["message"]


# --- what is said at the end


def verdict(folder, tmp_path, capsys):
    with suppress(SystemExit):
        verify.main([f"{folder}/*.tar", "--processes=1", f"--cache-dir={tmp_path / 'cache'}"])
    return capsys.readouterr().out.splitlines()[-1].removeprefix("verdict: ")


def test_the_verdict_says_how_many_shards_had_checksums(run_here, folder, tmp_path, capsys):
    said = verdict(folder, tmp_path, capsys)
    assert said.startswith(
        "0 problems; 0 of 2 shards had checksums; in others no changed byte shows"
    )
    assert "index --checksums" in said
    write_wids(folder / "wids.json", [(NAMES[0], facts_of(folder / NAMES[0]))])
    assert "1 of 2 shards had checksums;" in verdict(folder, tmp_path, capsys)
    assert run_here(index.main)(folder / "*.tar", "--checksums")[0] == 0
    (folder / "wids.json").unlink()
    assert verdict(folder, tmp_path, capsys) == "0 problems; 2 of 2 shards had checksums"
    flip(folder / NAMES[0], members_of(folder / NAMES[0])[4].offset_data)
    assert verdict(folder, tmp_path, capsys) == "1 problem; 2 of 2 shards had checksums"
