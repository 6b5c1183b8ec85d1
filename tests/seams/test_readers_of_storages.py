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
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.recipe import Recipe
from lightning_shards.readers.stream import StreamSource
from lightning_shards.samples.fields import Field
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore

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


def test_the_stream_reader_takes_any_storage(tmp_path):
    local, files = shards_of_both(2, tmp_path)
    storages = {"mem": partial(DictStorage, files)}
    found, wanted = (
        StreamSource(
            index=ShardIndex(tuple(urls), np.array([5, 5])),
            epochs=EpochSchedule(10, 4, "drop"),
            seed=3,
            sampling="shuffled",
            recipes=(Recipe((Field("data", ("bin",), "raw"),), shuffle_buffer=1000),),
            storages=storages,
        ).batches(Place(), Cursor())
        for urls in (files, local)
    )
    for _ in range(4):
        first, second = next(found).batch, next(wanted).batch
        assert first["data"] == second["data"]
        assert first["__id__"].tolist() == second["__id__"].tolist()


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


def test_all_ranges_of_some_batches_are_one_call(tmp_path, monkeypatch):
    files = {f"mem://x/{number}.tar": tar_of(number) for number in range(3)}
    calls = []

    def counted(self, reads, plain=DictStorage.read_ranges):
        calls.append([each.url for each in reads])
        return plain(self, reads)

    source = source_of(files, tmp_path, storages={"mem": partial(DictStorage, files)})
    source.prepare()
    monkeypatch.setattr(DictStorage, "read_ranges", counted)
    next(source.batches(Place(), Cursor()))
    assert calls == [sorted(files)]


def test_a_table_of_a_store_is_kept_by_its_url(tmp_path):
    files = {"mem://x/0.tar": tar_of(0), "mem://y/0.tar": tar_of(1)}
    storages = Storages({"mem": partial(DictStorage, files)})
    store = TableStore(CacheFolder(tmp_path), storages=storages)
    assert [store.table_of(url).key(0) for url in files] == ["00", "10"]
    cache = CacheFolder(tmp_path)
    queries = [cache.sidecar_of(f"mem://{user}x/0.tar?part={part}") for part in (0, 1)
               for user in ("", "me:secret@")]  # fmt: skip
    assert queries[0] == queries[1] != queries[2] == queries[3]
    assert all(map(store.has_current, files))
    index = ShardIndex(tuple(files), np.array([5, 5]))
    makers = {"mem": partial(DictStorage, files)}
    with OpenShards(index, CacheFolder(tmp_path), limit=1, storages=makers) as shards:
        assert shards.reader(1).read(4, "cls") == b"4"
        assert shards.reader(0).read(0, "bin") == bytes(2) * 9000
