"""A branch of the hub that moves while a run reads it: the run stays at its first commit."""

import pickle
from contextlib import closing
from types import SimpleNamespace

import pytest
from fault_server import COMMIT

from lightning_shards.shards.index import ShardIndex, share_index, shared_index
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.http_client import HttpReply
from lightning_shards.shards.remote.hub import HubBackend
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.scheme_table import (
    forget_commits,
    pin_commit,
    pinned_commits,
)
from lightning_shards.shards.storage.range_streams import RangeStreams
from lightning_shards.shards.storage.remote import MakeRemoteStorage
from tests.shards.remote.conftest import options_of

pytestmark = pytest.mark.network

A, B = "hf://datasets/me/data/a.tar", "hf://datasets/me/data/b.tar"
MOVED = "f" * 40


@pytest.fixture
def hub(server):
    for name in ("a.tar", "b.tar"):
        server.objects[f"data/{name}"] = b"before " + name.encode()
        server.objects[f"{MOVED}/{name}"] = b"after " + name.encode()
    return server


def test_a_second_transport_of_the_process_reads_the_same_commit(hub, make_transport):
    make_transport().read(A, 0, 99)
    hub.commit = MOVED
    assert make_transport().read(B, 0, 99).data == b"before b.tar"


def test_a_stream_that_is_opened_after_another_was_left_reads_the_same_commit(hub, make_transport):
    with closing(RangeStreams(make_transport(), 2)) as streams:
        with streams.open(A) as file:
            file.read()
        streams.close()  # as leaving a stream early does with its own connections
        hub.commit = MOVED
        with streams.open(B) as file:
            assert file.read() == b"before b.tar"


def test_a_worker_process_reads_the_same_commit(hub, make_transport, tmp_path):
    make_transport().read(A, 0, 99)
    make = MakeRemoteStorage(TransportSettings(options_of(hub), cache_dir=str(tmp_path)))
    pickled = pickle.dumps(make)
    hub.commit = MOVED
    forget_commits()  # as another process knows none
    made = pickle.loads(pickled)
    assert made == make
    storage = made()
    assert storage.read(B, 0, 12) == b"before b.tar"
    storage.close_all()


def test_another_rank_of_the_node_reads_the_same_commit(hub, make_transport, tmp_path):
    make_transport().read(A, 0, 99)
    cache = CacheFolder(tmp_path)
    share_index(ShardIndex((A, B), None), cache, "all")
    hub.commit = MOVED
    forget_commits()
    assert shared_index((A, B), cache, "all") is not None
    assert make_transport().read(B, 0, 99).data == b"before b.tar"


@pytest.mark.parametrize("commits", ['{"a": "main"}', '{"a": 1}'])
def test_an_index_that_names_no_commits_is_made_again(commits, tmp_path):
    cache = CacheFolder(tmp_path)
    share_index(ShardIndex((A,), None), cache, "all")
    (file,) = (tmp_path / "indexes").iterdir()
    file.write_text(file.read_text().replace('"hub_commits": {}', f'"hub_commits": {commits}'))
    assert shared_index((A,), cache, "all") is None
    assert pinned_commits() == {}


def test_two_threads_that_ask_while_the_branch_moves_read_one_commit(server, tmp_path):
    asked = []

    def request(method, target, headers, body=None):
        revision, name = target.url.split("/")[-2:]
        asked.append(f"{revision}/{name}")
        commit = revision
        if revision == "main":  # the other thread has just been told the commit before
            pin_commit(options["endpoint"], "datasets/me/data@None", COMMIT)
            commit = MOVED
        response = SimpleNamespace(
            status=206,
            headers={"X-Repo-Commit": commit},
            read=lambda _: b"",
            release_conn=lambda: None,
        )
        return HttpReply(response, f"https://elsewhere.invalid/{revision}/{name}", [])

    options = {"endpoint": "https://hub.invalid", "anonymous": True}
    with closing(HubBackend(options, RetryPolicy(), 4, str(tmp_path))) as backend:
        backend._client.request = request
        location, reply = backend._located(B, {})
    assert asked == ["main/b.tar", f"{COMMIT}/b.tar"]
    assert location.url == reply.url == f"https://elsewhere.invalid/{COMMIT}/b.tar"
    assert location.commit == COMMIT
