"""What a survey says of one shard, however its members are spread over samples and suffixes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.dataprep.inspection.survey import (
    ShardSurvey,
    describe_shard,
    sizes_of,
    survey,
)
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
