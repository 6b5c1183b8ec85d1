"""Servers of other makers for each kind of store, and where they are not like the others.

nginx stands for http(s) and moto for what obstore reads. Each holds the bucket `data`; it listens
on a free port, and is ended with the tests by its pid.
"""

import os
import shutil
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import pytest
from waiting import wait_for

KEY = b64encode(b"s3cr3t-key").decode()
NAMES = ("nginx", "moto")


@dataclass(frozen=True)
class RealServer:
    """A server that runs.

    Attributes:
        name: As in `NAMES`.
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
        if self.name == "nginx":
            return f"http://127.0.0.1:{self.port}/data/{quote(name)}"
        return f"s3://data/{name}"


@contextmanager
def started(command: Callable[[int], Sequence[str]], folder: Path) -> Iterator[int]:
    """Run a server by its command for a port, and give the port; its output goes to `output.txt`.

    The kernel kills it if this process ends without ending it.
    """
    for _ in range(3):  # another program may take the port before the server does
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        with (folder / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command(port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            if _listens(process, port):
                yield port
                return
        finally:
            process.kill()
            process.wait()
    pytest.fail(f"it does not start: {(folder / 'output.txt').read_text(errors='replace')[-2000:]}")


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server accepts connections; it may end instead."""
    wait_for(lambda: process.poll() is not None or accepts(port), 60)
    return process.poll() is None and accepts(port)


def accepts(port: int) -> bool:
    """Whether a server listens there."""
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


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
    path = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        _missing("nginx is not installed: apt-get install nginx-light")
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


def _missing(what: str) -> NoReturn:
    """CI says by the variable that no server may be missing."""
    raise (pytest.fail if "REMOTE_SERVERS_REQUIRED" in os.environ else pytest.skip).Exception(what)


MOTO = """
import signal, sys
from moto.server import ThreadedMotoServer
ThreadedMotoServer("127.0.0.1", int(sys.argv[1]), verbose=False).start()
signal.pause()
"""


@contextmanager
def moto(folder: Path) -> Iterator[RealServer]:
    """Amazon's S3; it takes any key, and refuses who has none."""
    if find_spec("moto") is None:
        _missing("the server of moto comes with the extra `test`")
    with started(lambda port: [sys.executable, "-c", MOTO, str(port)], folder) as port:
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("PUT", "/data")
            assert connection.getresponse().status in range(200, 300)
        options = {"s3": {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}}
        credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": KEY}
        yield RealServer("moto", port, options, credentials)


START: Mapping[str, Callable[[Path], AbstractContextManager[RealServer]]] = {
    "nginx": nginx,
    "moto": moto,
}
"""Each runs a server that keeps what it has in this folder."""
