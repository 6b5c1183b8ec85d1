"""Data sets with bad samples, each for all tests that only read it."""

import pytest
from spoilt_shards import BAD, COUNTS, STREAM_BAD, Data, flip_byte, write_shards


@pytest.fixture(scope="session")
def indexed_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    urls = write_shards(folder / "shards", BAD)
    flip_byte(urls[3], folder / "cache", 1)
    return Data(urls, folder / "cache", BAD)


@pytest.fixture(scope="session")
def clean_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    return Data(write_shards(folder / "shards", {}), folder / "cache", {})


@pytest.fixture(scope="session")
def stream_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    return Data(write_shards(folder / "shards", STREAM_BAD), folder / "cache", STREAM_BAD)


@pytest.fixture
def make_data(tmp_path):
    """Writes shards with their own counts and faults: `make_data({2: "image"}, counts=(4, 4))`."""

    def make(bad, counts=COUNTS):
        return Data(write_shards(tmp_path / "shards", bad, counts), tmp_path / "cache", bad)

    return make
