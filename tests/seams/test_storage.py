"""What every storage owes to a reader, checked on all of them."""

from functools import partial
from zlib import crc32

import numpy as np
import pytest
from fakes import example
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError, IndexMismatchError, ShardNotFoundError
from lightning_shards.remote.storage import RemoteStorage
from lightning_shards.remote.transport import Body, version_number
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import ShardReads, ShardStat
from lightning_shards.shards.storage.schemes import Storages

DictStorage = example("dict_storage").DictStorage
CONTENT = {"a": bytes(range(256)) * 5, "b": b"of b" * 100}
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class DictTransport:
    """Objects in memory; their version is a checksum."""

    def __init__(self, files):
        self.files = files

    def read(self, url, begin, end, stat=None):
        if url not in self.files:
            raise ShardNotFoundError(f"{url} is not there")
        data = self.files[url]
        now = ShardStat(len(data), version_number(f"{crc32(data):08x}"))
        if stat not in (None, now):
            raise IndexMismatchError(f"{stat} was expected, {now} is there")
        return Body([data[begin:end]], now)

    def write(self, url, data):
        self.files[url] = data

    def close(self):
        pass


class Store:
    """A storage, and how a test changes what lies in it."""

    def __init__(self, kind, folder):
        self._folder, self.files = (folder if kind == "local" else None), {}
        makers = {"local": LocalStorage, "remote": self._remote}
        self.storage = makers.get(kind, partial(DictStorage, self.files))()

    def _remote(self):
        return RemoteStorage(DictTransport(self.files), connections=3)

    def url(self, name):
        return f"mem://{name}" if self._folder is None else str(self._folder / name)

    def put(self, name, data):
        if self._folder is None:
            self.files[self.url(name)] = data
        else:
            (self._folder / f"{name}.new").write_bytes(data)
            (self._folder / f"{name}.new").rename(self._folder / name)


@pytest.fixture(params=["local", "example", "remote"])
def store(request, tmp_path):
    made = Store(request.param, tmp_path)
    for name, data in CONTENT.items():
        made.put(name, data)
    yield made
    for name in CONTENT:
        made.storage.close(made.url(name))
    made.storage.close_all()


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


def test_prefetching_changes_nothing(store):
    store.storage.prefetch([request(store, "a", [(0, 9), (3000, 4000)])[0]])
    store.storage.prefetch([ShardReads(store.url("absent"), [0], [1])])
    assert store.storage.read(store.url("a"), 5, 7) == CONTENT["a"][5:7]


def test_a_scheme_without_a_storage_is_refused():
    with pytest.raises(ConfigError, match=r"no storage reads 'mem://x/0.tar'.*in storages"):
        Storages().of("mem://x/0.tar")
    found = Storages({"mem": partial(DictStorage, {})}).of("mem://x/0.tar")
    assert isinstance(found, DictStorage)


def test_small_files_beside_shards_are_read_at_once_and_none_is_absent(store):
    urls = [store.url(name) for name in ("a", "absent", "b")]
    contents = [CONTENT["a"][:100], None, CONTENT["b"][:100]]
    stats = [store.storage.stat(url) for url in urls[::2]]
    assert store.storage.read_beside(urls, 100) == (contents, [])
    assert store.storage.read_beside(urls, 100, urls[::2]) == (contents, stats)
