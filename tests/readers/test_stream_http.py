"""Shards over http: whole or an error, whatever the server does, and no secret in a message."""

import hashlib
import http.server
import socket
import threading
import time
import traceback
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest

from lightning_shards.errors import (
    DamagedShardError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.plan.place import Place
from lightning_shards.readers.stream_stages import read_shard
from lightning_shards.remote.backend import RetryPolicy
from lightning_shards.remote.storage import remote_storages
from lightning_shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import Storages

pytestmark = pytest.mark.network

SHARD = "shard-000000.tar"


class FaultyHandler(http.server.BaseHTTPRequestHandler):
    """Serves a folder; `?cut=N` sends N bytes of a body that was announced whole."""

    def do_GET(self):
        path, _, query = self.path.partition("?")
        file = self.server.folder / Path(unquote(path)).name
        self.server.asked.append(self.path)
        if not file.exists():
            self.send_error(404)
            return
        body = file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.end_headers()
        fault, _, size = query.partition("&")[0].partition("=")
        self.wfile.write(body[: int(size)] if fault == "cut" else body)

    def log_message(self, *args):
        pass


class IPv6Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6


@contextmanager
def serving(folder, address="127.0.0.1"):
    """A server on a free port of the loopback interface."""
    kind = IPv6Server if ":" in address else http.server.ThreadingHTTPServer
    with kind((address, 0), FaultyHandler) as server:
        server.folder, server.asked = folder, []
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield server
        finally:  # else a test that fails would never end
            server.shutdown()
            thread.join()


@pytest.fixture
def server(tmp_path):
    """A server for the shards of `pack_shards`."""
    with serving(tmp_path / "shards") as server:
        yield server


@pytest.fixture
def root(server):
    return f"127.0.0.1:{server.server_address[1]}"


def keys(url):
    """The keys of a shard, fetched with all times of the policy divided by 100."""
    settings = TransportSettings(policy=RetryPolicy().scaled(0.01))
    with closing(Storages(remote_storages(settings))) as storages:
        return [sample["__key__"] for sample in read_shard(url, None, storages=storages)]


def failure(url, kind=StorageError):
    """The message of the error that reading this shard gives, and all that a traceback shows."""
    with pytest.raises(kind) as caught:
        keys(url)
    assert caught.type is kind
    return str(caught.value), "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("path", [f"{SHARD}?cut=3600&sig=", f"{SHARD}?cut=4096&", "gone.tar?"])
def test_no_message_holds_a_signature_or_a_password(root, pack_shards, path):
    pack_shards([3])
    kind = ShardNotFoundError if "gone" in path else StorageError
    message, shown = failure(f"http://user:secret@{root}/{path}secret", kind)
    assert "secret" not in message
    assert "secret" not in shown


def test_a_shard_that_was_stored_cut_is_an_error_without_its_signature(server, root, pack_shards):
    """Here the download is whole."""
    pack_shards([3])
    whole = (server.folder / SHARD).read_bytes()
    (server.folder / SHARD).write_bytes(whole[: whole.index(b"PNG") + 20])
    message, shown = failure(f"http://{root}/{SHARD}?sig=secret", DamagedShardError)
    assert f"http://{root}/{SHARD} is cut short or damaged" in message
    assert "secret" not in shown


def test_an_unknown_host_is_an_error_at_once(make_source, monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)
    source = make_source(["http://user:secret@nowhere.invalid/a.tar"], samples=4, counted=False)
    begin = time.perf_counter()
    with pytest.raises(ShardNotFoundError, match=r"nowhere\.invalid/.* has no address") as caught:
        source.first_sample(Place())
    assert "secret" not in str(caught.value)
    assert time.perf_counter() - begin < 20
