"""Shards to filter, a cache, and lists of keys."""

import pytest

from tests.shards.filters.filtered_shards import pack_texts


@pytest.fixture
def urls(tmp_path):
    return pack_texts(tmp_path / "data")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def listed(tmp_path):
    def write(*lines, name="out.txt"):
        (tmp_path / name).write_text("\n".join(lines))
        return str(tmp_path / name)

    return write
