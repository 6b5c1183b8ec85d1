"""The contract of transports over servers of other makers, and what only these show.

That is preconditions, credentials, and faults of a proxy before a real store.
"""

import socket
import sys
import time
from urllib.parse import urlsplit

import pytest
from fault_server import Fault
from real_servers import TRAITS

from lightning_shards.errors import FileAccessError, IndexMismatchError, ShardNotFoundError
from lightning_shards.shards.remote.transport import (
    RemoteTransport,
    TransportSettings,
)
from lightning_shards.shards.storage.range_streams import StreamAhead
from lightning_shards.shards.storage.remote import RemoteStorage
from tests.shards.remote.conftest import QUICK
from tests.shards.remote.contract import DATA, TransportContract, read_in_process

pytestmark = pytest.mark.network

CLOUDS = ["moto", "azurite", "gcs"]
KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import real_servers
with real_servers.START["nginx"](Path(sys.argv[1])) as server:
    print(server.port, flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=TRAITS)
def store(request, real_store):
    return real_store(request.param)


class TestContract(TransportContract):
    pass


@pytest.mark.parametrize("name", [name for name, traits in TRAITS.items() if traits.is_private])
def test_what_is_private_is_not_read_without_credentials(name, real_store, real_server):
    store, scheme = real_store(name), TRAITS[name].scheme
    options = {**real_server(name).options[scheme], "anonymous": True}
    anonymous = RemoteTransport(TransportSettings({scheme: options}))
    with pytest.raises(FileAccessError, match=r"403 .* credentials were looked for in A") as caught:
        anonymous.read(store.url, 0, 9)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", CLOUDS)
def test_an_unknown_bucket_is_not_found(name, real_store):
    transport, scheme = real_store(name).transport, TRAITS[name].scheme
    with pytest.raises(ShardNotFoundError, match=rf"{scheme}://nowhere/a\.tar .*the bucket"):
        transport.read(f"{scheme}://nowhere/a.tar", 0, 9)


def test_another_process_reads_the_same_with_credentials_of_its_environment(
    real_store, real_server
):
    stores = [real_store(name) for name in TRAITS]
    options = {scheme: of for name in TRAITS for scheme, of in real_server(name).options.items()}
    reads = [(store.url, 5, 99) for store in stores]
    answers = read_in_process("spawn", RemoteTransport(TransportSettings(options)), reads)
    assert answers == [DATA[5:99]] * len(reads)


@pytest.fixture(params=CLOUDS)
def proxied(request, server, real_server, real_store):
    """The store of a cloud's server, which is reached through ours with its faults."""
    store, real = real_store(request.param), real_server(request.param)
    server.upstream = f"127.0.0.1:{real.port}"
    scheme = TRAITS[real.name].scheme
    path = urlsplit(real.options[scheme]["endpoint"]).path
    options = {**real.options[scheme], "endpoint": f"{server.url}{path}"}
    store.transport.close()
    store.transport = RemoteTransport(TransportSettings({scheme: options}, policy=QUICK))
    yield store
    store.transport.close()


FAULTS = [
    Fault("status", 503),
    Fault("status", 401),
    Fault("reset"),
    Fault("cut", 40_000),
    Fault("cut_reset", 40_000),
    Fault("stall", 40_000),
]


def test_faults_before_a_real_store_cost_no_byte(proxied, server):
    for fault in FAULTS:
        server.faults = [fault]
        assert proxied.transport.read(proxied.url, 1_000, 90_000).data == DATA[1_000:90_000]
    assert proxied.transport.counts.repeated == len(FAULTS)


def test_an_object_of_a_real_store_that_is_replaced_while_it_is_read_is_an_error(proxied, server):
    proxied.put("replaced", DATA)

    class Replaced(Fault):
        @property
        def value(self):
            proxied.put("replaced", DATA[::-1])
            return 40_000

    server.faults = [Replaced("cut")]
    with pytest.raises(IndexMismatchError, match="another version"):
        proxied.transport.read(proxied.url_of("replaced"), 0, 90_000)


def test_a_server_ends_with_tests_that_are_killed(real_server, start_program, tmp_path):
    real_server("nginx")  # which says if there is none
    paths = [path for path in sys.path if path]
    with start_program([sys.executable, "-c", KILLED, str(tmp_path), *paths], tmp_path) as tests:
        port = int(tests.stdout.readline())
        socket.create_connection(("127.0.0.1", port)).close()
        tests.kill()
        tests.wait()
        while is_listening(port):
            time.sleep(0.01)


def is_listening(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("name", TRAITS)
def test_a_stream_from_servers_of_other_makers_is_the_object(name, real_store):
    store = real_store(name)
    storage = RemoteStorage(
        store.transport, 4, ahead=StreamAhead(ranges=2, range_bytes=2_000, first_bytes=700)
    )
    with storage.open_stream(store.url) as opened:
        assert opened.read() == DATA
    storage.close_all()
