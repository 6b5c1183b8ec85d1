"""Small shards for all tests of this folder."""

import io
import itertools
import tarfile

import pytest
from worlds import MAX_COUNT, MAX_SHARDS


@pytest.fixture(scope="session")
def shards_by_count(tmp_path_factory):
    """For each number of samples up to MAX_COUNT, shards with that many."""
    folder = tmp_path_factory.mktemp("worlds")
    urls = {}
    for count, copy in itertools.product(range(MAX_COUNT + 1), range(MAX_SHARDS)):
        urls[count, copy] = str(folder / f"{count}-{copy}.tar")
        with tarfile.open(urls[count, copy], "w", format=tarfile.USTAR_FORMAT) as shard:
            for sample in range(count):
                info = tarfile.TarInfo(f"{sample}.cls")
                info.size = 1
                shard.addfile(info, io.BytesIO(b"%d" % sample))
    return urls
