"""What a survey says of one shard, however its members are spread over samples and suffixes.

Also what it and a check say of keys that are in several shards.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.dataprep.inspection.check import check_shards
from lightning_shards.dataprep.inspection.findings import NOT_SURVEYED
from lightning_shards.dataprep.inspection.survey import (
    ShardSurvey,
    compare_keys,
    describe_shard,
    each_shard,
    sizes_of,
    survey,
)
from lightning_shards.errors import ConfigError
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.private_files import CacheFolder

SAMPLES = st.lists(
    st.sets(st.sampled_from(["cls", "jpg", "txt", "seg.png"]), min_size=1), max_size=6
)


@settings(max_examples=100)
@given(samples=SAMPLES)
def test_fields_and_what_lacks_them_are_those_of_the_samples(tmp_path_factory, write_tar, samples):
    path = tmp_path_factory.getbasetemp() / "survey.tar"
    members = [
        (f"{number}.{suffix}", b"x" * (number + len(suffix)))
        for number, suffixes in enumerate(samples)
        for suffix in sorted(suffixes)
    ]
    write_tar(path, members)
    found = ShardSurvey(str(path))
    describe_shard(found, scan_members(path))
    for suffix in ("cls", "jpg", "txt", "seg.png"):
        having = [number for number, suffixes in enumerate(samples) if suffix in suffixes]
        lacking = [number for number in range(len(samples)) if number not in having]
        if not having:
            assert suffix not in found.fields
            continue
        sizes = sizes_of(np.array([number + len(suffix) for number in having]))
        assert str(found.fields[suffix]) == str(sizes)
        assert found.lacking.get(suffix) == (str(lacking[0]) if lacking else None)


class Counted(np.ndarray):
    """An array that counts the elements that are calculated with."""

    elements = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        Counted.elements += max(np.size(value) for value in inputs)
        return getattr(ufunc, method)(*map(np.asarray, inputs), **options)


@pytest.mark.parametrize("name", ["k.f{}", "k{}.f{}.x"], ids=["one sample", "dots in keys"])
def test_the_work_grows_with_the_members_and_not_with_their_square(tmp_path, write_tar, name):
    num_members = 2000
    names = [name.replace("{}", str(number)) for number in range(num_members)]
    path = write_tar(tmp_path / "0.tar", [(name, b"1") for name in names])
    table = scan_members(path)
    counted = {
        field: getattr(table, field).view(Counted) for field in ("sizes", "suffix_ids", "offsets")
    }
    Counted.elements = 0
    found = ShardSurvey(str(path))
    describe_shard(found, replace(table, **counted))
    assert len(found.fields) == num_members
    assert 0 < Counted.elements < 50 * num_members


def test_a_field_that_whole_shards_lack_is_placed_in_the_first_of_them(tmp_path, write_tar):
    shards = [["a.x", "a.y"], ["b.x"], ["c.z"], ["d.x", "d.y", "d.z"]]
    urls = [
        str(write_tar(tmp_path / f"{number}.tar", [(name, b"1") for name in names]))
        for number, names in enumerate(shards)
    ]
    found = survey(urls, cache=CacheFolder(tmp_path / "cache"))
    places = {
        finding.message.split("'")[1]: (finding.shard, finding.sample)
        for finding in found.findings
        if finding.rule == "missing field"
    }
    assert places == {"x": (urls[2], "c"), "y": (urls[1], "b"), "z": (urls[0], "a")}


# --- keys that are in several shards


@pytest.fixture
def repeating(tmp_path, write_tar):
    """Two shards, of which the second has a key of the first."""
    shards = [["a.x"], ["b.x", "a.x"]]
    return [
        str(write_tar(tmp_path / f"{number}.tar", [(name, b"1") for name in names]))
        for number, names in enumerate(shards)
    ]


@pytest.mark.parametrize("scan", [survey, check_shards])
def test_above_the_limit_it_is_said_that_no_keys_were_compared(
    scan, repeating, tmp_path, monkeypatch
):
    limit = "lightning_shards.dataprep.inspection.survey.MAX_COMPARED"
    monkeypatch.setattr(limit, 3)
    [found] = scan(repeating, cache=CacheFolder(tmp_path / "cache")).findings
    assert (found.shard, found.sample, found.count) == (repeating[1], "a", 1)
    monkeypatch.setattr(limit, 2)
    [found] = scan(repeating, cache=CacheFolder(tmp_path / "cache")).findings
    assert (found.rule, found.is_failure, found.count) == ("repeated key", False, 0)
    assert "were not looked for: there are 3 keys, and 2 are compared" in found.message


@pytest.mark.parametrize("scan", [survey, check_shards])
def test_a_key_of_many_shards_is_one(scan, tmp_path, write_tar):
    urls = [
        str(write_tar(tmp_path / f"{n}.tar", [("a.x", b"1"), (f"{n}.x", b"1")])) for n in range(4)
    ]
    [found] = scan(urls, cache=CacheFolder(tmp_path / "cache")).findings
    assert (found.count, found.message.split(",")[0]) == (1, "1 key is in several shards")


def make_fifo(path, write_tar):
    path.unlink()
    os.mkfifo(path)


SPOILED = {
    "gone": lambda path, _: path.unlink(),
    "no regular file": make_fifo,
    "damaged": lambda path, _: path.write_bytes(b"no tar" * 200),
    "fewer samples": lambda path, write_tar: write_tar(path, [("b.x", b"1")]),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("scan", [survey, check_shards])
def test_a_shard_that_is_spoiled_before_its_key_is_looked_up_loses_no_finding(
    scan, spoil, repeating, tmp_path, write_tar, monkeypatch
):
    def spoiled(*arguments, **options):
        yield from each_shard(*arguments, **options)
        spoil(Path(repeating[1]), write_tar)

    monkeypatch.setattr(f"{scan.__module__}.each_shard", spoiled)
    [found] = scan(repeating, cache=CacheFolder(tmp_path / "cache")).findings
    assert (found.rule, found.shard, found.sample) == ("repeated key", repeating[1], None)


@pytest.mark.parametrize("kind", [*NOT_SURVEYED, ConfigError])
def test_no_error_about_one_shard_loses_the_finding_of_a_repeated_key(kind):
    def key_of(url, sample):
        raise kind(f"sample {sample} of {url}")

    shards = [ShardSurvey(url, hashes=np.array([7], np.uint64)) for url in ("0.tar", "1.tar")]
    [found] = compare_keys(["0.tar", "1.tar"], shards, key_of)
    assert (found.shard, found.sample, found.count) == ("1.tar", None, 1)
