"""`lightning-shards index` counts what readers will yield, and writes what others read."""

import hashlib
import json
import os

import pytest

from lightning_shards.tools import index
from tests.tools.conftest import flip, members_of, write_members, write_samples

COUNTS = [4, 0, 3]


@pytest.fixture
def run(run_here):
    return run_here(index.main)


@pytest.fixture
def folder(tmp_path):
    return write_samples(tmp_path / "data", COUNTS)


def test_the_wids_json_counts_names_and_sums(run, folder):
    status, document = run(folder / "*.tar", "--checksums")
    assert (status, document["samples"], document["shards"]) == (0, 7, 3)
    assert [(of, n["samples"]) for of, n in document["fields"].items()] == [
        ("jpg", 7), ("cls", 7), ("txt", 7),
    ]  # fmt: skip
    listed = json.loads((folder / "wids.json").read_text())
    assert (listed["wids_version"], document["findings"]) == (1, [])
    assert listed["shardlist"] == [
        {
            "url": path.name,
            "md5sum": hashlib.md5(path.read_bytes()).hexdigest(),
            "nsamples": count,
            "filesize": path.stat().st_size,
        }
        for path, count in zip(sorted(folder.glob("*.tar")), COUNTS, strict=True)
    ]


def test_an_index_of_other_shards_is_not_overwritten(run, tmp_path):
    folder = write_samples(tmp_path, [1], "train")
    write_samples(folder, [2], "val")
    assert run(folder / "train-*.tar")[0] == 0
    before = (folder / "wids.json").read_bytes()
    assert run(folder / "val-*.tar")[0] == 2
    assert (folder / "wids.json").read_bytes() == before


def test_a_format_that_is_not_known_is_refused(folder, refused_by):
    said = refused_by(index, folder / "*.tar", "--format", "wids,dali")
    assert "formats are wids, members, not 'dali'" in said


# --- what is odd or wrong


@pytest.mark.parametrize(
    ("names", "rule"), [("a.x b.x a.y b.y", "split sample"), ("a.x b.x a.x", "duplicate key")]
)
def test_what_is_wrong_is_named(run, tmp_path, names, rule):
    path = write_members(tmp_path / "a.tar", [(name, b"1") for name in names.split()])
    status, document = run(path)
    assert (status, document["written"]) == (1, [str(tmp_path / "wids.json")])
    [found] = [each for each in document["findings"] if each["rule"] == rule]
    assert (found["sample"], found["shard"]) == ("a", str(path))
    assert found["byte"] in [each.offset_data for each in members_of(path)]


def test_a_damaged_shard_is_named_and_no_index_written(run, folder):
    shards = [folder / "train-000000.tar", folder / "train-000002.tar"]
    header = members_of(shards[1])[4].offset
    os.truncate(shards[0], 3000)
    flip(shards[1], header)
    status, document = run(folder / "*.tar")
    damaged = [each for each in document["findings"] if each["rule"] == "damaged shard"]
    assert status == 1
    assert [each["shard"] for each in damaged] == list(map(str, shards))
    assert f", at byte {header};" in damaged[1]["message"]
    assert not (folder / "wids.json").exists()


def test_what_is_unusual_is_noted(run, tmp_path):
    members = ["a.x", "a.y", "b.x", "README", "__all__"]
    write_members(tmp_path / "a.tar", [(name, b"1") for name in members])
    write_members(tmp_path / "b.tar", [("a.x", b"1"), ("c.x", b"1")])
    status, document = run(tmp_path / "*.tar")
    notes = {each["rule"]: each for each in document["findings"]}
    assert (status, set(notes)) == (0, {"missing field", "passed over"})
    assert notes["missing field"]["message"].startswith("3 of 4 samples have no 'y'; ")
