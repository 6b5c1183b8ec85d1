"""What every storage owes to a reader, checked on all of them."""

import errno
import gc
import io
import os
import tarfile
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from fakes import example
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_shards import (
    Cursor,
    EpochSchedule,
    FileAccessError,
    IndexMismatchError,
    Place,
    SampleError,
    SampleOrder,
    ShardIndex,
    ShardNotFoundError,
)
from lightning_shards.errors import ConfigError
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.samples.fields import Field, SampleTransforms
from lightning_shards.samples.seeds import SampleSeeds
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import ShardReads
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.tables import TableStore

DictStorage = example("dict_storage").DictStorage
CONTENT = {"a": bytes(range(256)) * 5, "b": b"of b" * 100}
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class Store:
    """A storage, and how a test changes what lies in it."""

    def __init__(self, kind, folder):
        self._folder, self.files = (folder if kind == "local" else None), {}
        self.storage = LocalStorage() if kind == "local" else DictStorage(self.files)

    def url(self, name):
        return f"mem://{name}" if self._folder is None else str(self._folder / name)

    def put(self, name, data):
        if self._folder is None:
            self.files[self.url(name)] = data
        else:
            (self._folder / f"{name}.new").write_bytes(data)
            (self._folder / f"{name}.new").rename(self._folder / name)


@pytest.fixture(params=["local", "example"])
def store(request, tmp_path):
    with store_of(request.param, tmp_path) as made:
        yield made


@contextmanager
def store_of(kind, folder):
    made = Store(kind, folder)
    for name, data in CONTENT.items():
        made.put(name, data)
    yield made
    for name in CONTENT:
        made.storage.close(made.url(name))


def request(store, name, ranges, **given):
    size = sum(stop - start for start, stop in ranges)
    into = np.full(size, 7, np.uint8)
    starts, stops = ([each[end] for each in ranges] for end in (0, 1))
    return ShardReads(store.url(name), starts, stops, into=into.data, **given), into


def expected(name, ranges):
    return [CONTENT[name][start:stop] for start, stop in ranges]


RANGES = st.lists(st.tuples(st.integers(0, 1400), st.integers(0, 300)), max_size=6).map(
    lambda pairs: sorted((start, start + size) for start, size in pairs)
)


@given(of_a=RANGES, of_b=RANGES)
@SHARED
def test_one_call_reads_ranges_of_many_shards(store, of_a, of_b):
    (first, into_a), (second, into_b) = request(store, "a", of_a), request(store, "b", of_b)
    sizes = store.storage.read_ranges([first, second])
    for name, ranges, read, into in (("a", of_a, sizes[0], into_a), ("b", of_b, sizes[1], into_b)):
        wanted, begin = expected(name, ranges), 0
        assert list(map(len, wanted)) == list(read)
        for (start, stop), data in zip(ranges, wanted, strict=True):
            assert into[begin : begin + len(data)].tobytes() == data
            begin += stop - start
            assert store.storage.read(store.url(name), start, stop) == data


def test_a_stat_tells_the_size_and_whether_a_shard_changed(store):
    before = store.storage.stat(store.url("a"))
    assert before.size == len(CONTENT["a"])
    assert 0 <= before.version < 2**63
    assert store.storage.stat(store.url("a")) == before
    store.storage.close(store.url("a"))
    store.put("a", CONTENT["a"][::-1])
    assert store.storage.stat(store.url("a")) != before


def test_no_byte_of_another_version_is_given(store):
    old = store.storage.stat(store.url("a"))
    store.storage.close(store.url("a"))
    store.put("a", CONTENT["a"][::-1])
    reads, _ = request(store, "a", [(0, 10), (20, 20)], stat=old)
    right, into = request(store, "b", [(0, 4)], stat=store.storage.stat(store.url("b")))
    assert store.storage.read_ranges([reads, right]) == [[-1, -1], [4]]
    assert into.tobytes() == b"of b"
    assert store.storage.read(store.url("a"), 0, 10, old) == b""


class Unreadable(DictStorage):
    """Some bytes cannot be read."""

    def read(self, url, start, stop, stat=None):
        if start <= 10 < stop:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(url, start, stop, stat)


def test_a_range_that_cannot_be_read_is_empty_and_the_others_are_read():
    into = memoryview(bytearray(12))
    reads = ShardReads("mem://a", [0, 8, 20], [4, 12, 24], None, into)
    assert Unreadable({"mem://a": CONTENT["a"]}).read_ranges([reads]) == [[4, 0, 4]]
    assert bytes(into) == bytes(range(4)) + bytes(4) + bytes(range(20, 24))


def test_an_unknown_shard_is_named(store):
    ask = [
        store.storage.stat,
        lambda url: store.storage.read(url, 0, 1),
        lambda url: store.storage.read_ranges([ShardReads(url, [0], [1], into=memoryview(b"x"))]),
        lambda url: store.storage.open_stream(url).__enter__(),
    ]
    for each in ask:
        with pytest.raises(ShardNotFoundError, match="absent"):
            each(store.url("absent"))


def test_a_stream_gives_the_whole_shard(store):
    with store.storage.open_stream(store.url("a")) as stream:
        assert stream.read(100) + stream.read() == CONTENT["a"]


def test_announcing_changes_nothing(store):
    store.storage.announce([request(store, "a", [(0, 9), (3000, 4000)])[0]])
    store.storage.announce([ShardReads(store.url("absent"), [0], [1])])
    assert store.storage.read(store.url("a"), 5, 7) == CONTENT["a"][5:7]


def test_a_scheme_without_a_storage_is_refused():
    with pytest.raises(ConfigError, match=r"no storage reads 'mem://x/0.tar'.*in storages"):
        Storages().of("mem://x/0.tar")
    found = Storages({"mem": partial(DictStorage, {})}).of("mem://x/0.tar")
    assert isinstance(found, DictStorage)


def test_a_scheme_that_nobody_knows_has_no_ranges():
    assert [has_ranges(url) for url in ("a.tar", "s3://b/0.tar", "shard:0.tar")] == [True, 0, 0]


@pytest.mark.parametrize(
    ("ranges", "asked"),
    [([(512, 1000), (1024, 1024), (2048, 2049)], [(512, 488), (2048, 1)]), ([(7, 7)], [])],
)
def test_the_system_is_told_of_the_ranges_of_an_open_file(tmp_path, monkeypatch, ranges, asked):
    found = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *what: found.append(what[1:3]))
    with store_of("local", tmp_path) as local:
        reads, _ = request(local, "a", ranges)
        local.storage.announce([reads])
        assert found == []  # it is not open
        local.storage.stat(reads.url)
        local.storage.announce([reads])
    assert found == asked


def test_a_system_that_takes_no_advice_is_no_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    with store_of("local", tmp_path) as local:
        reads, _ = request(local, "a", [(0, 9)])
        local.storage.stat(reads.url)
        local.storage.announce([reads])


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
        fields=(Field("label", ("cls",), "int"), Field("data", ("bin",), "raw")),
        transforms={},
        cache=CacheFolder(tmp_path / "cache"),
        **given,
    )


def test_batches_are_those_of_local_files(tmp_path):
    """Read ahead or one by one, by offsets that the tables of either storage have."""
    local = {}
    for number in range(3):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(tar_of(number))
        local[str(path)] = path.read_bytes()
    files = {f"mem://x/{number}.tar": data for number, data in enumerate(local.values())}
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


def test_a_shard_that_changes_in_a_store_ends_the_run(tmp_path):
    files = {"mem://x/0.tar": tar_of(0)}
    source = source_of(files, tmp_path, storages={"mem": partial(DictStorage, files)})
    batches = source.batches(Place(), Cursor())
    next(batches)
    files["mem://x/0.tar"] = files["mem://x/0.tar"].replace(b"\0\1" * 9000, b"\0\7" * 9000)
    with pytest.raises(IndexMismatchError, match=r"mem://x/0.tar changed since it was indexed"):
        list(islice(batches, 9))


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


def test_a_shard_that_is_listed_twice_is_open_once(tmp_path):
    path = tmp_path / "0.tar"
    path.write_bytes(tar_of(0))
    index = ShardIndex((str(path), str(path)), np.array([5, 5]))
    before = sorted(Path("/proc/self/fd").iterdir())
    with OpenShards(index, CacheFolder(tmp_path), limit=1) as shards:
        assert shards.reader(0) is shards.reader(1)
        assert shards.members(1, 4)["cls"] == b"4"
    gc.collect()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_shard_that_gets_crc32s_between_lookup_and_reading_is_still_checked(tmp_path):
    path, cache = tmp_path / "0.tar", CacheFolder(tmp_path / "cache")
    path.write_bytes(tar_of(0))
    index, fields = ShardIndex((str(path),), np.array([5])), (Field("data", ("bin",), "raw"),)
    with OpenShards(index, cache) as shards:
        reader = BatchReader(shards, fields, "dict", StageClock())
        transforms = SampleTransforms({}, SampleSeeds(0, 0))
        reader.look_up(np.array([(0, 1)]), [(0, 1)], transforms)
        TableStore(cache, with_crc32=True).table_of(path)
        shards.reader(0).close()
        shards._readers.clear()
        assert shards.reader(0).table.crc32 is not None
        path.write_bytes(tar_of(0).replace(b"\0\1" * 9000, b"\0\7" * 9000))
        with pytest.raises(SampleError):
            reader.batch(0)


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
        assert shards.members(1, 4)["cls"] == b"4"
        assert shards.members(0, 0)["bin"] == bytes(2) * 9000
