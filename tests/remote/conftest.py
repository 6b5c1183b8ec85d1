"""Servers that live for the session: our own, with its faults, and those of other makers."""

import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fault_server import Fault, FaultServer, fault_server
from real_servers import START, RealServer

from lightning_shards.build import found_shards
from lightning_shards.remote.backend import RetryPolicy, TransportSettings
from lightning_shards.remote.transport import RemoteTransport
from tests.remote.published import COUNTS, DATA, publish, server_put

SIGNED = "?X-Amz-Signature=s3cr3t-query"
QUICK = RetryPolicy(
    total_s=1.8,
    first_pause_s=0.001,
    longest_pause_s=0.15,
    longest_retry_after_s=0.6,
    connect_s=0.1,
    stall_s=0.3,
)
"""All times are a hundredth of those of a run."""
WITHOUT_RANGES = (
    Fault("whole"),  # as of python -m http.server
    Fault("whole", None, (("Content-Length", ""), ("Connection", "close"))),
    Fault("parts"),
)
"""How servers answer that send all of an object, whatever is asked for."""
FACES = ("http", "s3", "ais", "hf")
"""What our server looks like."""


@dataclass
class Store:
    """A store of any kind that holds `DATA` as `some/data.tar`, and a transport that reads it."""

    transport: RemoteTransport
    url_of: Callable[[str], str]
    put: Callable[[str, bytes], None]

    @property
    def url(self) -> str:
        return self.url_of("some/data.tar")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of this process try again at once, and give up soon."""
    monkeypatch.setattr(found_shards, "RetryPolicy", lambda: QUICK)
    monkeypatch.setattr(found_shards, "LOOK_UP", QUICK)


@pytest.fixture(scope="session")
def started_server() -> Iterator[FaultServer]:
    with fault_server() as server:
        yield server


@pytest.fixture(scope="session")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultServer, str]]:
    """Our server over https on the loopback, and the file of its certificate."""
    folder = tmp_path_factory.mktemp("tls")
    made = "req -x509 -newkey rsa:2048 -nodes -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", folder / "key.pem", "-out", folder / "ca.pem"]
    subprocess.run(["openssl", *made.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    with fault_server(context) as server:
        yield server, str(folder / "ca.pem")


@pytest.fixture
def server(started_server: FaultServer) -> Iterator[FaultServer]:
    """Our server without objects and faults."""
    started_server.reset()
    yield started_server
    started_server.reset()


def options_of(server: FaultServer) -> Mapping[str, Mapping[str, Any]]:
    """How the faces of our server are reached."""
    return {
        "s3": {"endpoint": server.url, "region": "us-east-1", "anonymous": True},
        "ais": {"endpoint": server.url},
        "hf": {"endpoint": server.url, "anonymous": True},
    }


def url_of(server: FaultServer, face: str, name: str) -> str:
    """The URL of an object of our server."""
    if face in ("http", "https"):
        return f"{server.url}/data/{quote(name)}{SIGNED}"
    return f"hf://datasets/me/{face}/{name}" if face == "hf" else f"{face}://data/{name}"


@pytest.fixture
def url(server: FaultServer) -> str:
    """The URL of an object of our server that holds `DATA`."""
    server.objects["data/a.tar"] = DATA
    return url_of(server, "http", "a.tar")


@pytest.fixture
def make_transport(server: FaultServer, tmp_path: Path) -> Iterator[Callable[..., RemoteTransport]]:
    """Makes a transport for our server, closed at the end."""
    made: list[RemoteTransport] = []

    def make(policy: RetryPolicy = QUICK, **others: Any) -> RemoteTransport:
        given = TransportSettings(options_of(server), 64, policy, str(tmp_path))
        made.append(RemoteTransport(given, **others))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@pytest.fixture
def transport(make_transport: Callable[..., RemoteTransport]) -> RemoteTransport:
    return make_transport()


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RealServer]]:
    """Gives a server of another maker by its name, which is started when it is first asked for."""
    started: dict[str, RealServer] = {}
    with ExitStack() as stack:

        def start(name: str) -> RealServer:
            if name not in started:
                folder = tmp_path_factory.mktemp(name)
                started[name] = stack.enter_context(START[name](folder))
            return started[name]

        yield start


@pytest.fixture
def real_store(
    real_server: Callable[[str], RealServer], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Store]]:
    """Makes the store of such a server; what it wants to be signed is."""
    with ExitStack() as stack:

        def make(name: str) -> Store:
            server = real_server(name)
            for variable, value in server.environment.items():
                monkeypatch.setenv(variable, value)
            transport = RemoteTransport(TransportSettings(server.options))
            stack.callback(transport.close)

            def put(name: str, data: bytes) -> None:
                transport.write(server.url_of(name), data)

            store = Store(transport, server.url_of, server.put or put)
            store.put("some/data.tar", DATA)
            return store

        yield make


@pytest.fixture
def local(pack_shards: Callable[..., list[str]]) -> list[str]:
    """Three small shards on this machine."""
    return pack_shards(COUNTS)


@pytest.fixture
def published_shards(local: list[str], server: FaultServer, tmp_path: Path) -> str:
    """The URLs of the shards on our server, with counts and tables; named by one pattern."""
    publish(local, server_put(server), tmp_path)
    return f"{server.url}/data/shard-{{000000..000002}}.tar{SIGNED}"


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[Store]:
    """fsspec's files in memory, which have times and no ETags."""
    with closing(RemoteTransport()) as transport:
        store = Store(transport, lambda name: f"memory://{tmp_path}/{name}", lambda *_: None)
        store.put = lambda name, data: transport.write(store.url_of(name), data)
        store.put("some/data.tar", DATA)
        yield store
