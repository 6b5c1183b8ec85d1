"""Stores that need signatures: endpoints, credentials, and keys that obstore reads otherwise."""

import pytest
from fault_server import Fault

from lightning_shards.errors import ConfigError, FileAccessError, StorageError
from lightning_shards.remote import cloud
from lightning_shards.remote.transport import RemoteTransport, TransportSettings
from tests.remote.conftest import url_of
from tests.remote.contract import DATA

pytestmark = pytest.mark.network


def test_without_credentials_the_error_says_at_once_where_they_belong(server, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    settings = TransportSettings({"s3": {"endpoint": server.url, "region": "us-east-1"}})
    with pytest.raises(FileAccessError, match=r"no credentials were found.* belong in AWS_ACCESS"):
        RemoteTransport(settings).read("s3://data/a.tar", 0, 99)
    assert server.asked == []


def test_what_obstore_gives_up_goes_on_behind_the_last_byte(make_transport, server):
    transport, url = make_transport(), url_of(server, "s3", "a.tar")
    server.objects["data/a.tar"] = DATA
    server.faults = [Fault("cut", 50_000), *[Fault("status", 503)] * 9]
    assert transport.read(url, 0, 90_000).data == DATA[:90_000]
    assert transport.counts.repeated > 0
    last = server.asked[-1].headers
    assert last["range"] == "bytes=50000-89999"
    assert last["if-match"] == server.etag("data/a.tar")


def test_a_store_without_etag_and_date_is_refused(make_transport, server):
    server.objects["data/a.tar"], server.has_etags, server.has_dates = DATA, False, False
    with pytest.raises(StorageError, match="tells neither ETag nor Last-Modified"):
        make_transport().read(url_of(server, "s3", "a.tar"), 0, 9)


@pytest.mark.parametrize("key", ["", "/a.tar", "a.tar/", "x//a.tar", "./a", "x/../a", "x/."])
def test_a_key_that_obstore_would_read_as_another_one_is_refused(key):
    with pytest.raises(StorageError, match=r"try 1 .*write s3://BUCKET/KEY.*is empty"):
        RemoteTransport().read(f"s3://bucket/{key}", 0, 9)


def test_a_url_of_a_bucket_holds_no_credentials():
    with pytest.raises(StorageError, match="without keys or passwords") as caught:
        RemoteTransport().read("s3://key:s3cr3t@b/a.tar", 0, 9)
    assert "s3cr3t" not in str(caught.value)


def test_without_obstore_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(cloud, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'lightning-shards\[remote\]'"):
        RemoteTransport().read("s3://b/a.tar", 0, 9)


@pytest.mark.filterwarnings("ignore:Boto3 will no longer support Python:DeprecationWarning")
def test_a_profile_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(ConfigError, match=r"NotFound\w* for profile='mine'; pip install boto3"):
        RemoteTransport(TransportSettings({"s3": {"profile": "mine"}})).read("s3://b/a", 0, 9)
