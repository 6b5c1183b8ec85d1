"""Ranges over http: servers without ranges, pages for people, redirects, proxies, certificates."""

from base64 import b64encode

import pytest
from fault_server import Fault

from lightning_shards.errors import (
    ConfigError,
    IndexMismatchError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.remote.backend import RetryPolicy, TransportSettings
from lightning_shards.remote.transport import RemoteTransport
from tests.remote.conftest import QUICK, WITHOUT_RANGES, url_of
from tests.remote.published import DATA

pytestmark = pytest.mark.network

ELSEWHERE = "http://elsewhere.invalid/a.tar"


@pytest.mark.parametrize("answer", WITHOUT_RANGES, ids=str)
def test_a_server_that_knows_no_ranges_is_an_error_that_says_so(answer, transport, url, server):
    server.always = answer
    assert transport.read(url, 0, 9).data == DATA[:9]
    with pytest.raises(StorageError, match=r"and no range \(try 1 of 10\); use a server that"):
        transport.read(url, 5, 9)


def test_without_etags_a_break_is_followed_by_the_rest_of_the_same_version(transport, url, server):
    server.has_etags = False
    server.faults = [Fault("cut", 40_000)]
    assert transport.read(url, 0, 90_000).data == DATA[:90_000]
    assert server.asked[-1].headers["range"] == "bytes=40000-89999"
    assert transport.counts[:3] == (2, 1, 90_000)
    longer = f"bytes 40000-89999/{len(DATA) + 1}"
    server.faults = [Fault("cut", 40_000), Fault("headers", None, (("Content-Range", longer),))]
    with pytest.raises(IndexMismatchError, match="another version"):
        transport.read(url, 0, 90_000)


def test_a_page_for_people_is_final_only_as_the_first_answer(transport, url, server):
    server.faults = [Fault("page"), None, Fault("page")]
    with pytest.raises(StorageError, match=r"page for people .*try 1 of 10") as caught:
        transport.read(url, 0, 9)
    assert "s3cr3t" not in str(caught.value)
    transport.read(url, 0, 9)
    assert transport.read(url, 5, 9).data == DATA[5:9]
    assert transport.counts.repeated == 1


def test_a_certificate_of_a_variable_is_trusted_and_others_are_not(tls_server, monkeypatch):
    server, ca = tls_server
    server.reset()
    server.objects["data/a.tar"] = DATA
    url, settings = url_of(server, "https", "a.tar"), TransportSettings(policy=QUICK)
    with pytest.raises(StorageError, match=r"not trusted.*try 1 of 10.*REQUESTS_CA_BUNDLE"):
        RemoteTransport(settings).read(url, 0, 9)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", ca)
    assert RemoteTransport(settings).read(url, 0, 9).data == DATA[:9]


def test_queries_and_passwords_reach_the_server_and_its_host_alone(transport, url, server):
    secret = url.replace("://", "://me:p%40ss@")
    there = f"http://you:other@127.0.0.1:{server.other_port}/data/a.tar"
    back = f"{server.url}/data/a.tar?other=1"
    server.faults = [Fault("redirect", "/data/a.tar?own=1"), Fault("redirect", there)]
    server.faults += [Fault("redirect", back), None]
    assert transport.read(secret, 0, 9).data == DATA[:9]
    sent = [each.headers.get("authorization") for each in server.asked]
    ours = f"Basic {b64encode(b'me:p@ss').decode()}"
    assert sent == [ours, ours, None, None]
    assert server.asked[0].path == "/data/a.tar?X-Amz-Signature=s3cr3t-query"
    assert all("s3cr3t" not in str(each) for each in server.asked[1:])


@pytest.mark.parametrize(
    "url", ["http://", "https://host:port/a", "http://me:s3cr/3t@host/a.tar", "https://[::1/x"]
)
def test_a_url_that_cannot_be_read_is_an_error(url, transport):
    with pytest.raises(StorageError, match=r"the URL cannot be read.*try 1 of") as caught:
        transport.read(url, 0, 9)
    assert "s3cr" not in str(caught.value)


@pytest.mark.usefixtures("without_proxies")
def test_a_host_without_an_address_is_an_error_at_once(make_transport):
    slept = []
    with pytest.raises(ShardNotFoundError, match=r"its host has no address; check the URL"):
        make_transport(sleep=slept.append).read(ELSEWHERE, 0, 9)
    assert slept == []


def test_retry_after_is_waited_for(make_transport, url, server):
    slept = []
    transport = make_transport(RetryPolicy(), sleep=slept.append)
    asked = ("7", "99", "Mon, 23 Nov 2099 20:00:00 GMT", "soon")
    server.faults = [Fault("status", 503, (("Retry-After", seconds),)) for seconds in asked]
    assert transport.read(url, 0, 9).data == DATA[:9]
    assert slept[:3] == [7, 60, 60]
    assert slept[3] < 15


def test_the_gateway_of_ais_is_an_option_or_a_variable(url, server, monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with pytest.raises(ConfigError, match="AIS_ENDPOINT"):
        RemoteTransport().read("ais://data/a.tar", 0, 9)
    monkeypatch.setenv("AIS_ENDPOINT", server.url)
    assert RemoteTransport().read("ais://data/a.tar", 0, 9).data == DATA[:9]


@pytest.fixture
def without_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("without_proxies")
def test_a_proxy_is_asked_for_what_it_stands_before_by_its_user(
    server, make_transport, monkeypatch
):
    server.objects[ELSEWHERE] = b"bytes"
    monkeypatch.setenv("ALL_PROXY", server.url.replace("://", "://me:s3cr3t@"))
    assert make_transport().read(ELSEWHERE, 0, 9).data == b"bytes"
    assert server.asked[0].path == ELSEWHERE
    assert server.asked[0].headers["proxy-authorization"].startswith("Basic ")
