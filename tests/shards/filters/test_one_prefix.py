"""Parts of prefixes of which there is one alone are all samples or none, which is said."""

import pytest

from lightning_shards.errors import ConfigError
from tests.shards.filters.filtered_shards import applied, pack_texts

ALL_PARTS = {"hash_of": "prefix", "of": 2, "parts": [0, 1]}


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def told(caplog):
    """What was said of prefixes."""
    return lambda: [r.message for r in caplog.records if "'prefix'" in r.message]


@pytest.mark.parametrize("name", ["keep", "exclude"])
def test_one_prefix_of_all_samples_is_said_once(tmp_path, cache, told, name):
    urls = pack_texts(tmp_path / "data", key="set.v1/{:04d}")
    num_left = []
    for part in (0, 1):
        given = {"hash_of": "prefix", "of": 2, "parts": [part]}
        try:
            num_left.append(applied(urls, cache, **{name: given}).kept_samples)
        except ConfigError:
            num_left.append(0)
    assert sorted(num_left) == [0, 30]
    lines = told()
    assert len(lines) == 2  # one of each filter
    for line in lines:
        assert f"{name}: hash_of 'prefix' takes all samples of this split or none" in line
        assert "all 30 have the prefix 'set'" in line


@pytest.mark.parametrize(
    ("key", "counts"),
    [("{:04d}", [5, 3]), ("{0:04d}.part/{0:04d}", [5, 3]), ("{0:04d}.part/x", [1, 1, 1])],
)
def test_of_several_prefixes_nothing_is_said(tmp_path, cache, told, key, counts):
    applied(pack_texts(tmp_path / "data", counts, key=key), cache, keep=ALL_PARTS)
    assert told() == []


def test_one_prefix_matters_only_where_parts_of_several_samples_are_made_of_it(
    tmp_path, cache, told
):
    urls = pack_texts(tmp_path / "data", key="set.v1/{:04d}")
    applied(urls, cache, keep={"hash_of": "key", "of": 1, "parts": [0]})
    applied(pack_texts(tmp_path / "one", [1], key="set.v1/{:04d}"), cache, keep=ALL_PARTS)
    assert told() == []
