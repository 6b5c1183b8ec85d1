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


@pytest.fixture(params=["locks", "no locks"])
def with_or_without_locks(request, failing_lock_calls):
    """A file system with locks, and one without for all tests but those of `needs_locks`."""
    if request.param == "no locks" and "needs_locks" in request.fixturenames:
        pytest.skip("needs a file system with locks")
    failing_lock_calls(0 if request.param == "locks" else 10**9)


@pytest.fixture
def needs_locks():
    """Marks a test of what locks do."""
