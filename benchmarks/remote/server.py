"""nginx behind the shaping proxy: both are started here, and end with whoever started them."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_READY_S = 10.0
_NGINX = """
daemon off;
master_process off;
error_log stderr crit;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    keepalive_timeout 3600;
    open_file_cache max=4096 inactive=3600;
    client_body_temp_path {folder}/temporary;
    proxy_temp_path {folder}/temporary;
    fastcgi_temp_path {folder}/temporary;
    uwsgi_temp_path {folder}/temporary;
    scgi_temp_path {folder}/temporary;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        root {root};
        rewrite ^/copy[0-9]+/(.*)$ /$1 break;
    }}
}}
"""


@dataclass(frozen=True)
class Rig:
    """A server and the link to it.

    Attributes:
        shaped: The port of the proxy.
        control: The port that the proxy is controlled by.
    """

    shaped: int
    control: int


def ask(control: int, **what: Any) -> dict[str, Any]:
    """Tell the proxy something, and get its counters; see `proxy`."""
    with socket.create_connection(("127.0.0.1", control)) as asked, asked.makefile("rw") as file:
        file.write(json.dumps(what) + "\n")
        file.flush()
        return json.loads(file.readline())


@contextmanager
def served(root: Path, folder: Path) -> Iterator[Rig]:
    """Serve the files below `root`; `folder` is for what nginx writes.

    Raises:
        RuntimeError: nginx is not installed, or does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, root=root, port=port))
    path = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if path is None:
        raise RuntimeError("nginx is not installed; run apt-get install nginx-light")
    command = ["setpriv", "--pdeathsig", "KILL", path, "-p", str(folder), "-e", "stderr"]
    nginx = subprocess.Popen(  # noqa: S603
        [*command, "-c", str(folder / "nginx.conf")], stdin=subprocess.DEVNULL
    )
    proxy = subprocess.Popen(  # noqa: S603
        [sys.executable, str(Path(__file__).with_name("proxy.py")), str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert proxy.stdout is not None
        shaped, control = map(int, proxy.stdout.readline().split())
        _wait_for(port, nginx)
        yield Rig(shaped, control)
    finally:
        for process in (proxy, nginx):
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def _wait_for(port: int, nginx: subprocess.Popen[bytes]) -> None:
    latest = time.monotonic() + _READY_S
    while nginx.poll() is None and time.monotonic() < latest:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError("nginx does not start; what it said is above")
