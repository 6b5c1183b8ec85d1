"""Fetchers of objects in memory, which end with their test."""

import pytest
from held_fetcher import DATA, LARGE
from held_transport import HeldTransport, cache_in

from lightning_shards.remote.fetcher import Fetcher
from lightning_shards.remote.request_threads import RequestThreads


@pytest.fixture
def transport():
    return HeldTransport({"u": DATA, "large": LARGE})


@pytest.fixture
def make_fetcher(transport, tmp_path):
    made = []

    def make(cache=None, threads=4, **others):
        cache = cache or cache_in(tmp_path / "cache")
        made.append(Fetcher(transport, RequestThreads(threads + 1), cache, **others))
        made[-1].read([])  # what is announced is fetched from the first batch on
        return made[-1]

    yield make
    for fetcher in made:
        fetcher.close()
