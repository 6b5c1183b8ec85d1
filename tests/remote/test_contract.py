"""What every transport promises, whatever store it reads, and after a fork."""

import multiprocessing
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from real_servers import NAMES

from lightning_shards.errors import IndexMismatchError, ShardError, ShardNotFoundError
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.remote.transport import RemoteTransport
from tests.remote.conftest import FACES, Store, url_of
from tests.remote.published import DATA, server_put

pytestmark = pytest.mark.network

SIZE = len(DATA)


@pytest.fixture(params=[*FACES, *NAMES, "https", "other"])
def store(request, server, make_transport) -> Store:
    if request.param in NAMES:
        return request.getfixturevalue("real_store")(request.param)
    if request.param == "other":
        return request.getfixturevalue("file_store")
    transport = make_transport()
    if request.param == "https":
        server, ca = request.getfixturevalue("tls_server")
        server.reset()
        transport = RemoteTransport(TransportSettings({"https": {"ca": ca}}))
    put = server_put(server)
    put("some/data.tar", DATA)
    return Store(transport, lambda name: url_of(server, request.param, name), put)


# All examples read the one store that the test was given
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, SIZE + 9), st.integers(0, SIZE))
@example(0, SIZE)
@example(0, SIZE + 1)
@example(SIZE - 1, 1)
@example(SIZE - 1, 2)
@example(SIZE, 0)
@example(SIZE, 1)
@example(SIZE + 1_000_000, 5)
@example(0, 0)
@example(0, 1)
def test_a_range_is_that_of_the_bytes(store: Store, begin: int, length: int) -> None:
    end = begin + length
    body = store.transport.read(store.url, begin, end)
    assert (body.data, body.stat.size) == (DATA[begin:end], SIZE)
    again = store.transport.read(store.url, begin, end, body.stat)
    assert (again.data, again.stat) == (body.data, body.stat)


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (0, 99), (7, 99)])
def test_an_empty_object_has_no_bytes(store: Store, begin: int, end: int) -> None:
    store.put("empty", b"")
    body = store.transport.read(store.url_of("empty"), begin, end)
    assert (body.data, body.stat.size) == (b"", 0)


@pytest.mark.parametrize(
    "name", ["a b/ü+(1)~.tar", "a%20b.tar", "100%.tar", "a::b.tar", "a&b=c;d,e@f.tar"]
)
def test_a_name_may_hold_what_urls_escape(name: str, store: Store) -> None:
    store.put(name.replace("%20", " "), b"another object")
    store.put(name, b"abc")
    assert store.transport.read(store.url_of(name), 1, 9).data == b"bc"


def test_another_version_is_refused(store: Store) -> None:
    store.put("changed", b"old bytes")
    url = store.url_of("changed")
    old = store.transport.read(url, 0, 3)
    store.put("changed", b"new bytes")  # of the same size, as tars often are
    with pytest.raises(IndexMismatchError, match=r"changed cannot be read: it is another vers"):
        store.transport.read(url, 0, 3, old.stat)
    new = store.transport.read(url, 0, 3)
    assert new.stat != old.stat
    assert new.data == b"new"


def test_what_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(ShardNotFoundError, match=r"absent\.tar"):
        store.transport.read(store.url_of("absent.tar"), 0, 3)


def read_in_fork(transport: RemoteTransport, urls: Sequence[str]) -> list[bytes | str]:
    """What a fork of this process gets of these objects: some bytes, or their errors as text."""

    def read(url: str) -> bytes | str:
        try:
            return transport.read(url, 5, 99).data
        except ShardError as error:
            return f"{type(error).__name__}: {error}"

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(list(map(read, urls))))
    process.start()
    try:
        assert ours.poll(20), "no answer"
        return ours.recv()
    finally:
        process.kill()
        process.join()
        ours.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_of_a_process_that_used_obstore_raises_and_never_hangs(
    server, make_transport, file_store
):
    server.objects["data/a.tar"], transport = DATA, make_transport()
    urls = [url_of(server, face, "a.tar") for face in ("s3", "http", "ais", "hf")]
    urls.append(file_store.url)
    for url in urls:
        assert transport.read(url, 0, 3).data == DATA[:3]
    refused, *others = read_in_fork(transport, urls)
    assert others == [DATA[5:99]] * 4
    assert refused.startswith("ConfigError: s3:// was used in process ")
    assert "multiprocessing_context='forkserver'" in refused
    assert [transport.read(url, 5, 99).data for url in urls] == [DATA[5:99]] * 5
