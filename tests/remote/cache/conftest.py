"""A cache folder, and a cache of ten pieces in it, for all tests of this folder."""

import pytest
from cached_bytes import make_cache, make_need


@pytest.fixture
def folder(tmp_path):
    """The user's cache folder."""
    return tmp_path / "cache"


@pytest.fixture
def cache(folder):
    """A cache with room for ten pieces."""
    cache = make_cache(folder, make_need(10))
    yield cache
    cache.close()
