"""A cache folder, and a cache of ten pieces in it, for all tests of this folder."""

import errno
import os

import pytest
from cached_bytes import make_cache, make_need

from lightning_shards.shards.remote.cache import file_locks


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


@pytest.fixture
def failing_lock_calls(monkeypatch):
    """Lets the next calls for locks fail, so many of them."""
    left = [0]

    def failing(call):
        def called(*arguments):
            if left[0] > 0:
                left[0] -= 1
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
            return call(*arguments)

        return called

    def fail(number):
        left[0] = number

    for name in ("fcntl", "flock"):
        monkeypatch.setattr(file_locks.fcntl, name, failing(getattr(file_locks.fcntl, name)))
    return fail


@pytest.fixture
def no_locks(failing_lock_calls):
    """A file system without locks."""
    failing_lock_calls(10**9)


@pytest.fixture(params=["locks", "no locks"])
def with_or_without_locks(request, failing_lock_calls):
    """A file system with locks, and one without for all tests but those of `needs_locks`."""
    if request.param == "no locks" and "needs_locks" in request.fixturenames:
        pytest.skip("needs a file system with locks")
    failing_lock_calls(0 if request.param == "locks" else 10**9)


@pytest.fixture
def needs_locks():
    """Marks a test of what locks do."""
