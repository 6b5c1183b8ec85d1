"""Endpoints of stores that need signatures: by an option, or by a provider's variable alone."""

import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.cloud import allows_http
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
from tests.shards.remote.contract import DATA

pytestmark = pytest.mark.network

QUICK = RetryPolicy().scaled(0.01)
VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
OPTIONS = {
    "s3": {"region": "us-east-1", "anonymous": True},
    "gs": {"anonymous": True},
    "az": {"account": "account", "anonymous": True},
}
EACH = [(scheme, name) for scheme, names in VARIABLES.items() for name in names]


@pytest.fixture(autouse=True)
def without_variables(monkeypatch):
    for _, name in EACH:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def read():
    """Reads the first bytes of `a.tar` by options."""
    made = []

    def act(scheme, **options):
        given = {scheme: {**OPTIONS[scheme], **options}}
        made.append(RemoteTransport(TransportSettings(given, policy=QUICK)))
        return made[-1].read(f"{scheme}://data/a.tar", 0, 99).data

    yield act
    for transport in made:
        transport.close()


@pytest.mark.parametrize(("scheme", "name"), EACH)
def test_an_endpoint_of_a_variable_alone_is_read_without_tls(
    scheme, name, read, server, monkeypatch
):
    server.objects["data/a.tar"] = DATA
    monkeypatch.setenv(name, f"{server.url}/account" if scheme == "az" else server.url)
    assert read(scheme) == DATA[:99]


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_http_is_allowed_by_an_endpoint_or_by_a_variable_and_not_otherwise(scheme, monkeypatch):
    assert not allows_http(scheme, {})
    monkeypatch.setenv(VARIABLES[scheme][0], "https://elsewhere")
    assert not allows_http(scheme, {})
    monkeypatch.setenv(VARIABLES[scheme][0], "http://elsewhere")
    assert allows_http(scheme, {"anonymous": True})
    assert not allows_http(scheme, {"endpoint": "https://h"})
    assert allows_http(scheme, {"endpoint": "HTTP://h"})


@pytest.mark.parametrize(
    ("scheme", "name", "endpoint"),
    [
        *((*each, "minio:9000") for each in EACH),
        *((*EACH[0], each) for each in ("", "http://", "ftp://h", " http://h")),
    ],
)
def test_a_variable_that_holds_no_url_is_an_error(scheme, name, endpoint, read, monkeypatch):
    monkeypatch.setenv(name, endpoint)
    with pytest.raises(ConfigError, match=rf"{name} must be a whole URL, got '.*; write https://"):
        read(scheme)


@pytest.mark.parametrize("scheme", OPTIONS)
def test_an_option_that_is_no_url_is_an_error(scheme, read):
    with pytest.raises(ConfigError, match=f"of {scheme}: endpoint must be .* got 'minio:9000'"):
        read(scheme, endpoint="minio:9000")
