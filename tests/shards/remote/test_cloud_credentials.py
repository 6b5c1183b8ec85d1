"""Services that give credentials may fail for a moment, and then end no run that has had some."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lightning_shards.errors import FileAccessError, StorageError
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
from tests.shards.remote.contract import DATA

pytestmark = pytest.mark.network

ROLE = "/latest/meta-data/iam/security-credentials/"
GIVEN = {
    "AccessKeyId": "key",
    "SecretAccessKey": "s3cr3t",
    "Token": "s3cr3t",
    "Expiration": "2000-01-01T00:00:00Z",  # so it is asked for each request
}
QUICK = RetryPolicy().scaled(0.01)


class MetadataService:
    """The metadata service of an instance: it answers with the statuses of `faults` first."""

    def __init__(self, port=0):
        self.faults, self.asked = [], []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                service.asked.append(self.path)
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

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
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
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{service.port}")
    yield service
    service.close()


@pytest.fixture
def make_signing(server):
    """Makes a transport that asks the service for credentials of our server."""
    server.objects["data/a.tar"] = DATA
    made = []

    def make(**others):
        options = {"s3": {"endpoint": server.url, "region": "us-east-1"}}
        made.append(RemoteTransport(TransportSettings(options, policy=QUICK), **others))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@pytest.mark.parametrize(("status", "is_first"), [(429, True), (503, False)])
def test_a_service_that_is_busy_is_asked_again(status, is_first, service, make_signing):
    transport = make_signing()
    if not is_first:
        transport.read("s3://data/a.tar", 0, 9)
    service.faults = [status] * 4
    assert transport.read("s3://data/a.tar", 5, 99).data == DATA[5:99]
    assert transport.counts.repeated == 4


def test_a_service_that_is_gone_is_an_error_that_says_where_credentials_were_looked_for(
    service, make_signing
):
    transport = make_signing(sleep=lambda _: None)
    transport.read("s3://data/a.tar", 0, 9)
    service.close()
    gone = r"connection broke.* \(try 10 of 10\);.* credentials were looked for in AWS"
    with pytest.raises(StorageError, match=gone):
        transport.read("s3://data/a.tar", 5, 99)


def test_without_credentials_before_a_service_that_is_not_there_is_an_error_at_once(
    service, make_signing, server
):
    service.close()
    pauses = []
    with pytest.raises(FileAccessError, match=r"no credentials were found.* looked for in AWS_ACC"):
        make_signing(sleep=pauses.append).read("s3://data/a.tar", 0, 9)
    assert len(pauses) == 1
    assert server.asked == []
