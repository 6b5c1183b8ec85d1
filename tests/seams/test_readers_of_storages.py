"""Readers take any storage: batches, errors and tables are those of local files."""

from functools import partial

import numpy as np
import pytest
from fakes import example

from lightning_shards import (
    Cursor,
    EpochSchedule,
    FileAccessError,
    Place,
    SampleOrder,
    ShardIndex,
    ShardNotFoundError,
)
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.recipe import Recipe
from lightning_shards.samples.fields import Field
from lightning_shards.shards.private_files import CacheFolder

DictStorage = example("dict_storage").DictStorage


@pytest.fixture
def tars(tmp_path, write_tar):
    """The bytes of three shards of five samples, by their paths."""
    paths = []
    for shard in range(3):
        fields = [
            (("cls", b"%d" % each), ("bin", bytes([shard, each]) * 9000)) for each in range(5)
        ]
        members = [
            (f"{shard}{n}.{suffix}", data) for n, of in enumerate(fields) for suffix, data in of
        ]
        paths.append(write_tar(tmp_path / f"{shard}.tar", members))
    return {str(path): path.read_bytes() for path in paths}


def source_of(files, tmp_path, **given):
    index = ShardIndex(tuple(files), np.array([5] * len(files)))
    return IndexedSource(
        index=index,
        epochs=EpochSchedule(5 * len(files), 4, "drop"),
        order=SampleOrder(index.counts, 3, "shuffled", run=2, block=8),
        seed=3,
        recipes=(Recipe((Field("label", ("cls",), "int"), Field("data", ("bin",), "raw"))),),
        cache=CacheFolder(tmp_path / "cache"),
        **given,
    )


def test_batches_are_those_of_local_files(tmp_path, tars):
    """Read ahead, by offsets that the tables of either storage have."""
    files = {f"mem://x/{shard}.tar": data for shard, data in enumerate(tars.values())}
    own = source_of(files, tmp_path, storages={"mem": partial(DictStorage, files)})
    own.prepare()
    for wanted, found in zip(
        source_of(tars, tmp_path).batches(Place(), Cursor()),
        own.batches(Place(), Cursor()),
        strict=False,
    ):
        assert found.batch["label"].tolist() == wanted.batch["label"].tolist()
        assert found.batch["data"] == wanted.batch["data"]
        assert found.digest == wanted.digest
        if wanted.batch["__id__"].tolist()[0] == [0, 0]:
            break


@pytest.mark.parametrize("max_bad", [None, 9], ids=["raise", "substitute"])
@pytest.mark.parametrize("error", [FileAccessError, ShardNotFoundError])
def test_an_error_of_the_store_ends_the_run_and_is_no_bad_sample(tmp_path, tars, error, max_bad):
    files = {"mem://x/0.tar": next(iter(tars.values()))}
    storages = {"mem": partial(Failing, files, error)}
    source = source_of(files, tmp_path, storages=storages, max_bad=max_bad)
    source.prepare()
    files["mem://x/0.tar fails"] = b""
    with pytest.raises(error, match="403, the token has expired"):
        next(source.batches(Place(), Cursor()))


class Failing(DictStorage):
    """Reads fail as soon as the dict says so."""

    def __init__(self, files, error):
        super().__init__(files)
        self._error = error

    def read(self, url, start, stop, stat=None):
        if f"{url} fails" in self._files:
            raise self._error("403, the token has expired")
        return super().read(url, start, stop, stat)
