"""Readers take any storage; that of the examples runs in `tests/test_examples.py`."""

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


@pytest.mark.parametrize("max_bad", [None, 9], ids=["raise", "substitute"])
@pytest.mark.parametrize("error", [FileAccessError, ShardNotFoundError])
def test_an_error_of_the_store_ends_the_run_and_is_no_bad_sample(
    tmp_path, write_tar, error, max_bad
):
    files = {"mem://x/0.tar": write_tar(tmp_path / "0.tar", [("0.cls", b"1")]).read_bytes()}
    source = IndexedSource(
        index=ShardIndex(tuple(files), np.array([1])),
        epochs=EpochSchedule(1, 1, "drop"),
        order=SampleOrder(np.array([1]), 3, "shuffled", run=2, block=8),
        seed=3,
        recipes=(Recipe((Field("label", ("cls",), "int"),)),),
        cache=CacheFolder(tmp_path / "cache"),
        storages={"mem": partial(Failing, files, error)},
        max_bad=max_bad,
    )
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
