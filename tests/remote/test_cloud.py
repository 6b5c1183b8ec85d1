"""Stores that need signatures: endpoints, credentials, and keys that obstore reads otherwise."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fault_server import Fault

from lightning_shards.errors import ConfigError, FileAccessError, StorageError
from lightning_shards.remote import cloud
from lightning_shards.remote.backend import RetryPolicy
from lightning_shards.remote.transport import RemoteTransport, TransportSettings
from tests.remote.conftest import QUICK, url_of
from tests.remote.contract import DATA

pytestmark = pytest.mark.network

ROLE = "/latest/meta-data/iam/security-credentials/"
GIVEN = {
    "AccessKeyId": "key",
    "SecretAccessKey": "s3cr3t",
    "Token": "s3cr3t",
    "Expiration": "2000-01-01T00:00:00Z",  # so it is asked for each request
}
OPTIONS = {
    "s3": {"region": "us-east-1", "anonymous": True},
    "gs": {"anonymous": True},
    "az": {"account": "account", "anonymous": True},
}
VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
EACH = [(scheme, name) for scheme, names in VARIABLES.items() for name in names]


class MetadataService:
    """The metadata service of an instance: it answers with the statuses of `faults` first."""

    def __init__(self):
        self.faults = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status = service.faults.pop(0) if service.faults else 200
                bodies = {ROLE: "role", f"{ROLE}role": json.dumps(GIVEN)}
                body = bodies.get(self.path, "token").encode() if status == 200 else b""
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_GET  # noqa: N815 named by http.server

            def log_message(self, *_):
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    service = MetadataService()
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", service.url)
    yield service
    service.close()


@pytest.fixture
def signing(server):
    """Asks the service for credentials of our server."""
    server.objects["data/a.tar"] = DATA
    options = {"s3": {"endpoint": server.url, "region": "us-east-1"}}
    transport = RemoteTransport(TransportSettings(options, policy=QUICK))
    yield transport
    transport.close()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_service_of_credentials_that_is_busy_is_asked_again(is_first, service, signing):
    if not is_first:
        signing.read("s3://data/a.tar", 0, 9)
    service.faults = [429] if is_first else [503] * 4
    assert signing.read("s3://data/a.tar", 5, 99).data == DATA[5:99]


def test_without_credentials_the_error_says_at_once_where_they_belong(service, signing, server):
    service.close()
    with pytest.raises(
        FileAccessError, match=r"no credentials were found.* belong in AWS_ACCESS_KEY"
    ):
        signing.read("s3://data/a.tar", 0, 9)
    assert signing.counts.requests == 2
    assert server.asked == []


@pytest.fixture
def read(monkeypatch):
    """Reads the first bytes of `a.tar` by options."""
    for _, name in EACH:
        monkeypatch.delenv(name, raising=False)

    def act(scheme, **options):
        given = {scheme: {**OPTIONS[scheme], **options}}
        return RemoteTransport(TransportSettings(given, policy=QUICK)).read(
            f"{scheme}://data/a.tar", 0, 99
        )

    return act


@pytest.mark.parametrize(("scheme", "name"), EACH)
def test_an_endpoint_of_a_variable_alone_is_read_without_tls(
    scheme, name, read, server, monkeypatch
):
    server.objects["data/a.tar"] = DATA
    monkeypatch.setenv(name, f"{server.url}/account" if scheme == "az" else server.url)
    assert read(scheme).data == DATA[:99]


@pytest.mark.parametrize("scheme", OPTIONS)
def test_an_endpoint_that_is_no_url_is_an_error(scheme, read):
    with pytest.raises(ConfigError, match=f"endpoint of {scheme} must be .* write https://HOST"):
        read(scheme, endpoint="minio:9000")


def test_obstore_repeats_what_fails_for_a_moment_and_goes_on_inside_a_body(make_transport, server):
    transport, url = make_transport(RetryPolicy()), url_of(server, "s3", "a.tar")
    server.objects["data/a.tar"] = DATA
    server.faults = [Fault("status", 503), Fault("cut", 50_000)]
    assert transport.read(url, 0, 90_000).data == DATA[:90_000]
    assert transport.counts == (1, 0, 90_000)
    assert server.asked[-1].headers["range"] == "bytes=50000-89999"


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
@pytest.mark.parametrize("scheme", OPTIONS)
def test_a_key_that_obstore_would_read_as_another_one_is_refused(scheme, key):
    with pytest.raises(StorageError, match=rf"try 1 .*write {scheme}://BUCKET/KEY.*is empty"):
        RemoteTransport().read(f"{scheme}://bucket/{key}", 0, 9)


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
