"""Tars that both read."""

import pytest
from same_tars import Data, add_sample
from webdataset.writer import TarWriter


@pytest.fixture(scope="session")
def urls(tmp_path_factory):
    """Four tars of three samples."""
    folder = tmp_path_factory.mktemp("tars")
    made = [str(folder / f"{shard}.tar") for shard in range(4)]
    for shard, url in enumerate(made):
        with TarWriter(url) as writer:
            for number in range(3 * shard, 3 * shard + 3):
                add_sample(writer, number)
    return made


@pytest.fixture(params=["indexed", "stream"])
def data(urls, tmp_path, request):
    """The tars, and how ours are read."""
    return Data(urls, tmp_path, request.param)
