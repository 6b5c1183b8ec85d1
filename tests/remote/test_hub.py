"""The hub is asked once for a shard, and its answer and token are kept secret."""

import stat

import pytest
from fault_server import Fault

from lightning_shards.errors import FileAccessError, StorageError
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.remote.transport import RemoteTransport
from tests.remote.published import DATA

pytestmark = pytest.mark.network

URL, OTHER = "hf://datasets/me/data/a.tar", "hf://datasets/me/data/b/c d.tar"


@pytest.fixture
def hub(server):
    for name in ("a.tar", "b/c d.tar"):
        server.objects[f"data/{name}"] = DATA
    return server


def asked_of_hub(server):
    return [each.path for each in server.asked if each.port == server.port]


def test_the_hub_is_asked_once_for_all_ranges_of_a_shard(hub, transport, make_transport):
    """By one process of this machine; each other one asks once which commit a branch is."""
    transport.read(OTHER, 0, 9)
    for begin in range(0, 90_000, 9_000):
        assert transport.read(URL, begin, begin + 99).data == DATA[begin : begin + 99]
    another = make_transport()
    assert another.read(OTHER, 5, 9).data == another.read(URL, 5, 9).data == DATA[5:9]
    shards = [path.rpartition("/")[2] for path in asked_of_hub(hub)]
    assert shards == ["c%20d.tar", "a.tar", "c%20d.tar"]


def test_what_was_pushed_since_the_last_run_is_not_read_at_its_old_location(
    hub, transport, make_transport
):
    transport.read(OTHER, 0, 9)
    transport.read(URL, 0, 9)
    hub.commit = "b"
    another = make_transport()
    another.read(OTHER, 0, 9)
    another.read(URL, 0, 9)
    assert len(asked_of_hub(hub)) == 4


def test_a_revision_may_be_a_branch_whose_name_is_escaped(hub, transport):
    transport.read("hf://datasets/me/data@refs%2Fpr%2F1/b/c d.tar", 0, 9)
    assert asked_of_hub(hub) == ["/datasets/me/data/resolve/refs%2Fpr%2F1/b/c%20d.tar"]


def test_a_location_that_expired_is_asked_for_again(hub, transport):
    transport.read(URL, 0, 9)
    hub.signed_until -= 1
    assert transport.read(URL, 5, 9).data == DATA[5:9]
    assert len(asked_of_hub(hub)) == 2


def test_a_location_lies_in_a_file_of_this_user_alone(hub, transport, tmp_path):
    transport.read(URL, 0, 9)
    (file,) = (tmp_path / "locations").iterdir()
    assert b"s3cr3t-query" in file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "s3cr3t" not in file.name


@pytest.mark.parametrize("url", ["hf://datasets/me/a.tar", "hf://a.tar", "hf://"])
def test_a_url_without_its_parts_is_an_error(url, transport):
    with pytest.raises(StorageError, match="write hf://datasets/OWNER/NAME@REVISION/PATH"):
        transport.read(url, 0, 9)


def test_the_token_of_a_file_goes_to_the_hub_and_nowhere_else(hub, monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text("hf_s3cr3t\n")
    settings = TransportSettings({"hf": {"endpoint": hub.url}}, cache_dir=str(tmp_path / "kept"))
    assert RemoteTransport(settings).read(URL, 0, 9).data == DATA[:9]
    sent = [each.headers.get("authorization") for each in hub.asked]
    assert sent == ["Bearer hf_s3cr3t", None]


def test_who_is_refused_learns_where_the_token_belongs(hub, transport):
    hub.always = Fault("status", 401)
    with pytest.raises(FileAccessError, match=r"belong in HF_TOKEN or ~/\.cache/huggingface/token"):
        transport.read(URL, 0, 9)
