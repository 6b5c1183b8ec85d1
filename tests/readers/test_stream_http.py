"""Shards over http: whole or an error, whatever the server does, and no secret in a message."""

import hashlib
import http.server
import json
import socket
import threading
import time
import traceback
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import (
    DamagedShardError,
    FileAccessError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.plan.place import Place
from lightning_shards.readers.shard_samples import read_shard
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.remote import remote_storages
from lightning_shards.shards.storage.schemes import Storages

pytestmark = pytest.mark.network

SHARD = "shard-000000.tar"


class FaultyHandler(http.server.BaseHTTPRequestHandler):
    """Serves a folder.

    `?cut=N` sends N bytes of a body that was announced whole, `?stall=N` sends N and then nothing.
    """

    def do_GET(self):
        path, _, query = self.path.partition("?")
        file = self.server.folder / Path(unquote(path)).name
        self.server.asked.append(self.path)
        if not file.exists():
            self.send_error(403 if "forbidden" in self.path else 404)
            return
        body = file.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.end_headers()
        fault, _, size = query.partition("&")[0].partition("=")
        self.wfile.write(body[: int(size)] if fault in ("cut", "stall") else body)
        if fault == "stall":
            self.connection.recv(1)  # until the client is gone

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


def test_a_whole_shard_is_read(root, pack_shards):
    pack_shards([3])
    assert keys(f"http://{root}/{SHARD}") == ["000000", "000001", "000002"]


def test_leaving_a_download_early_leaves_no_thread(root, pack_shards):
    pack_shards([300])
    before = threading.active_count()
    samples = read_shard(f"http://{root}/{SHARD}", None)
    assert len(list(islice(samples, 2))) == 2
    samples.close()
    end = time.monotonic() + 1
    while threading.active_count() > before:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_shard_that_the_server_does_not_have_is_an_error(root, pack_shards):
    pack_shards([3])
    message, _ = failure(f"http://{root}/gone.tar", ShardNotFoundError)
    assert f"of http://{root}/gone.tar cannot be read: the server answers 404 Not Found" in message


def test_a_shard_that_the_server_refuses_is_an_error(root, pack_shards):
    pack_shards([3])
    url = f"http://user:secret@{root}/forbidden.tar?sig=secret"
    assert "the server answers 403 Forbidden" in failure(url, FileAccessError)[0]


def test_a_server_that_is_not_there_is_an_error():
    message, _ = failure("http://127.0.0.1:1/000.tar")
    assert "no connection can be made (try 10 of 10)" in message


@pytest.mark.parametrize("size", [0, 3600, 2048, 4096, 13_000])
def test_a_body_that_is_cut_is_an_error(root, pack_shards, size):
    """At once, within data, at the end of a member, of a sample, and within the archive's end."""
    pack_shards([3])
    message, _ = failure(f"http://{root}/{SHARD}?cut={size}")
    assert f"of http://{root}/{SHARD} cannot be read: the connection broke" in message


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


@pytest.mark.parametrize("prefix", ["x[1-2]", "y{a,b}", "z 100%"])
def test_nothing_in_a_url_is_expanded(server, root, pack_shards, prefix):
    pack_shards([1], prefix=prefix)
    assert keys(f"http://{root}/{prefix.replace('%', '%25')}-000000.tar") == ["000000"]
    assert len(server.asked) == 1


@pytest.fixture
def load_labels(tmp_path, root):
    """All labels of an epoch of remote shards, in order."""

    def load(urls, **settings):
        module = ShardDataModule(
            SplitConfig(f"http://{root}/{urls}", reader="stream", **settings),
            fields={"label": "cls"},
            batch_size=2,
            num_workers=0,
            loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
        )
        return [label for batch in module.loader("train") for label in batch["label"].tolist()]

    return load


def test_remote_shards_without_counts_are_resampled(pack_shards, load_labels):
    pack_shards([3, 3])
    labels = load_labels("shard-00000{0,1}.tar", dataset_size=8)
    assert len(labels) == 8
    assert set(labels) <= set(range(6))


@pytest.mark.parametrize("settings", [{}, {"dataset_size": 8}])
def test_a_url_that_leads_nowhere_is_told_so_before_a_size_is_asked_for(load_labels, settings):
    with pytest.raises(ShardNotFoundError, match=r"gone.tar cannot be read: .* 404 Not Found"):
        load_labels("gone.tar", **settings)


def test_remote_shards_with_counts_are_served_once(server, pack_shards, load_labels):
    pack_shards([3, 3])
    sizes = {f"shard-{shard:06d}.tar": 3 for shard in range(2)}
    (server.folder / "sizes.json").write_text(json.dumps(sizes))
    assert load_labels("shard-00000{0,1}.tar", sampling="sequential") == list(range(6))


def test_remote_counts_that_are_wrong_are_an_error(server, pack_shards, load_labels):
    pack_shards([3])
    (server.folder / "sizes.json").write_text(json.dumps({SHARD: 2}))
    with pytest.raises(DamagedShardError, match="more than 2 samples where its index says 2"):
        load_labels(SHARD, sampling="sequential")


def test_an_unknown_host_is_an_error_at_once(make_source, monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)
    source = make_source(["http://user:secret@nowhere.invalid/a.tar"], samples=4, counted=False)
    begin = time.perf_counter()
    with pytest.raises(ShardNotFoundError, match=r"'nowhere\.invalid' has no address") as caught:
        source.first_sample(Place())
    assert "secret" not in str(caught.value)
    assert time.perf_counter() - begin < 20
