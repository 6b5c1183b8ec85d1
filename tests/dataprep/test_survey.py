"""What a survey says of shards, however their members are spread over samples and suffixes."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.dataprep.survey import FieldSizes, describe_table, survey
from lightning_shards.shards.members import scan_members

SAMPLES = st.lists(
    st.sets(st.sampled_from(["cls", "jpg", "txt", "seg.png"]), min_size=1), max_size=6
)


def look(path):
    return describe_table(path, scan_members(path))


surveyed = partial(survey, look=look)


@settings(max_examples=100)
@given(samples=SAMPLES)
def test_sizes_of_fields_are_those_of_the_samples(tmp_path_factory, write_tar, samples):
    path = tmp_path_factory.getbasetemp() / "survey.tar"
    members = [
        (f"{number}.{suffix}", b"x" * (number + len(suffix)))
        for number, suffixes in enumerate(samples)
        for suffix in sorted(suffixes)
    ]
    write_tar(path, members)
    fields = look(str(path)).fields
    for suffix in ("cls", "jpg", "txt", "seg.png"):
        having = [number for number, suffixes in enumerate(samples) if suffix in suffixes]
        sizes = [number + len(suffix) for number in having]
        expected = FieldSizes(len(sizes), sum(sizes)) if sizes else None
        assert fields.get(suffix) == expected


@pytest.fixture
def write_all(tmp_path, write_tar):
    """Writes a shard for each list of names; gives their paths."""
    return lambda shards: [
        str(write_tar(tmp_path / f"{number}.tar", [(name, b"1") for name in names]))
        for number, names in enumerate(shards)
    ]


def test_a_field_that_samples_lack_is_placed_in_the_first_shard_that_does(write_all):
    urls = write_all([["a.x", "a.y"], ["b.x"], ["c.z"], ["d.x", "d.y", "d.z"]])
    places = {
        finding.message.split("'")[1]: (finding.shard, finding.count)
        for finding in surveyed(urls).findings
    }
    assert places == {"x": (urls[2], 1), "y": (urls[1], 2), "z": (urls[0], 2)}
