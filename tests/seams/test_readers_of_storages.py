"""Readers take any storage: batches, errors and tables are those of local files."""

import io
import tarfile
from functools import partial
from pathlib import Path

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


def tar_of(number):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for sample in range(5):
            for suffix, data in (("cls", b"%d" % sample), ("bin", bytes([number, sample]) * 9000)):
                info = tarfile.TarInfo(f"{number}{sample}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


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


def shards_of_both(number, folder):
    """So many local shards and the same in a store, by their URLs."""
    tars = [tar_of(shard) for shard in range(number)]
    local = {str(folder / f"{shard}.tar"): data for shard, data in enumerate(tars)}
    for path, data in local.items():
        Path(path).write_bytes(data)
    return local, {f"mem://x/{shard}.tar": data for shard, data in enumerate(tars)}


def test_batches_are_those_of_local_files(tmp_path):
    """Read ahead or one by one, by offsets that the tables of either storage have."""
    local, files = shards_of_both(3, tmp_path)
    own = source_of(files, tmp_path, storages={"mem": partial(DictStorage, files)})
    own.prepare()
    for wanted, found in zip(
        source_of(local, tmp_path).batches(Place(), Cursor()),
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
def test_an_error_of_the_store_ends_the_run_and_is_no_bad_sample(tmp_path, error, max_bad):
    files = {"mem://x/0.tar": tar_of(0)}
    storages = {"mem": partial(Failing, files, error)}
    source = source_of(files, tmp_path, storages=storages, max_bad=max_bad)
    source.prepare()
    files["mem://x/0.tar fails"] = b""
    with pytest.raises(error, match="403, the token has expired"):
        next(source.batches(Place(), Cursor()))


class Failing(DictStorage):
    """Reads fail as soon as the dict says so."""

    largest_ahead = 0  # so that members are read one by one

    def __init__(self, files, error):
        super().__init__(files)
        self._error = error

    def read(self, url, start, stop, stat=None):
        if f"{url} fails" in self._files:
            raise self._error("403, the token has expired")
        return super().read(url, start, stop, stat)
