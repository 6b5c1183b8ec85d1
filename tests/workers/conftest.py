"""Streams of batches that end with their test."""

import pytest

from lightning_shards.plan.place import Cursor, Place


@pytest.fixture
def start(request):
    """Starts streams, which end with the test."""

    def started(pool, source):
        stream = pool.start(source, Place(), Cursor())
        request.addfinalizer(stream.close)
        return stream

    return started
