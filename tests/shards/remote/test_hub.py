"""The hub is asked once for a shard, and what it answers is kept as the secret that it is."""

import stat
from types import SimpleNamespace

import pytest
from fault_server import COMMIT, Fault

from lightning_shards.errors import FileAccessError, StorageError
from lightning_shards.shards.remote.backend import RequestFailure
from lightning_shards.shards.remote.http_client import HttpReply
from lightning_shards.shards.remote.hub import HubBackend
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
from tests.shards.remote.contract import DATA

pytestmark = pytest.mark.network

URL = "hf://datasets/me/data/a.tar"


@pytest.fixture
def hub(server):
    server.objects["data/a.tar"] = server.objects["data/b/c d.tar"] = DATA
    return server


@pytest.fixture
def transport(make_transport):
    return make_transport()


def asked_of_hub(server):
    return [each.path for each in server.asked if each.port == server.port]


def test_the_hub_is_asked_once_for_all_ranges_of_a_shard(hub, transport):
    for begin in range(0, 90_000, 9_000):
        assert transport.read(URL, begin, begin + 99).data == DATA[begin : begin + 99]
    assert asked_of_hub(hub) == ["/datasets/me/data/resolve/main/a.tar"]
    assert len(hub.asked) == 11


def test_another_process_of_this_machine_does_not_ask_the_hub(hub, make_transport):
    first = make_transport()
    first.read(URL, 0, 9)
    assert make_transport().read(URL, 5, 9).data == DATA[5:9]
    assert len(asked_of_hub(hub)) == 1


def test_a_revision_is_pinned_to_its_commit_by_the_first_answer(hub, transport):
    transport.read("hf://datasets/me/data@refs%2Fpr%2F1/a.tar", 0, 9)
    transport.read("hf://datasets/me/data@refs%2Fpr%2F1/b/c d.tar", 0, 9)
    transport.read("hf://datasets/me/data@v2/a.tar", 0, 9)
    assert asked_of_hub(hub) == [
        "/datasets/me/data/resolve/refs%2Fpr%2F1/a.tar",
        f"/datasets/me/data/resolve/{COMMIT}/b/c%20d.tar",
        "/datasets/me/data/resolve/v2/a.tar",
    ]


def test_a_location_of_another_commit_is_not_used(hub, make_transport, tmp_path):
    make_transport().read(URL, 0, 9)
    (file,) = (tmp_path / "locations").iterdir()
    kept = file.read_bytes()
    other = make_transport()
    other.read("hf://datasets/me/data/b/c d.tar", 0, 9)
    file.write_bytes(kept.replace(COMMIT.encode(), b"f" * 40))
    other.read(URL, 0, 9)
    assert len(asked_of_hub(hub)) == 3


def test_a_location_that_expired_is_asked_for_anew(hub, transport, make_transport):
    transport.read(URL, 0, 9)
    hub.signed_until -= 1
    assert transport.read(URL, 5, 9).data == DATA[5:9]
    assert make_transport().read(URL, 5, 9).data == DATA[5:9]
    assert len(asked_of_hub(hub)) == 2


def test_a_location_that_another_thread_has_asked_for_anew_is_not_dropped(hub, tmp_path):
    options = {"endpoint": hub.url, "anonymous": True}
    backend = HubBackend(options, RetryPolicy(), 4, str(tmp_path))

    def read():
        with backend.get(URL, 0, 9, None) as answer:
            assert b"".join(answer.chunks) == DATA[:9]

    read()
    hub.signed_until -= 1
    failures = []
    for _ in range(2):  # as two threads do at once
        with pytest.raises(RequestFailure) as caught:
            read()
        failures.append(caught.value)
    for failure in failures:
        assert failure.kind == "denied"
        backend.refresh(URL, failure.used)
        read()
    assert len(asked_of_hub(hub)) == 2
    backend.close()


def test_a_hub_that_does_not_say_its_commit_is_asked_once_for_each_shard(tmp_path):
    """And one that says it for some files only."""
    asked = []

    def request(method, target, headers, body=None):
        name = target.url.rpartition("/")[2]
        asked.append(name)
        said = {"X-Repo-Commit": COMMIT} if name == "b.tar" else {}
        response = SimpleNamespace(status=206, headers=said)
        return HttpReply(response, f"https://elsewhere.invalid/{name}", [])

    options = {"endpoint": "https://hub.invalid", "anonymous": True}
    backend = HubBackend(options, RetryPolicy(), 4, str(tmp_path))
    backend._client.request = request
    for name in ("a", "b", "c"):
        for _ in range(3):
            location, _ = backend._located(f"hf://datasets/me/data/{name}.tar", {})
            assert location.url == f"https://elsewhere.invalid/{name}.tar"
    assert asked == ["a.tar", "b.tar", "c.tar"]
    for _ in range(2):  # it may be of an earlier commit than that of b.tar
        location, _ = backend._located("hf://datasets/me/data/a.tar", {})
    assert asked[3:] == ["a.tar"]
    backend.close()


def test_a_location_lies_in_a_file_of_this_user_alone(hub, transport, tmp_path):
    transport.read(URL, 0, 9)
    (file,) = (tmp_path / "locations").iterdir()
    assert b"s3cr3t-query" in file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "s3cr3t" not in file.name


def test_a_folder_that_others_may_write_is_refused(hub, transport, tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(FileAccessError, match="may be written by other users"):
        transport.read(URL, 0, 9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"url": "file:///etc/passwd", "until": 9e9, "commit": ""}',
        '{"url": "http://127.0.0.1:9/x", "until": 1, "commit": ""}',
        '{"url": "http://127.0.0.1:9/x", "until": NaN, "commit": ""}',
        "\udcff",
    ],
)
def test_a_file_that_holds_no_location_is_passed_over(text, hub, make_transport, tmp_path):
    make_transport().read(URL, 0, 9)
    (file,) = (tmp_path / "locations").iterdir()
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert make_transport().read(URL, 0, 9).data == DATA[:9]


def test_who_is_refused_learns_where_the_token_was_looked_for(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = TransportSettings(
        {"hf": {"endpoint": hub.url}}, 4, RetryPolicy().scaled(0.01), str(tmp_path)
    )
    hub.always = Fault("status", 401)
    with pytest.raises(FileAccessError, match=r"looked for in HF_TOKEN, HUGG.*/huggingface/token"):
        RemoteTransport(settings).read(URL, 0, 9)


@pytest.mark.parametrize("url", ["hf://datasets/me/a.tar", "hf://a.tar", "hf://"])
def test_a_url_without_its_parts_is_an_error(url, transport):
    with pytest.raises(StorageError, match="write hf://datasets/OWNER/NAME@REVISION/PATH"):
        transport.read(url, 0, 9)
