"""Ranges over http: servers without ranges, pages for people, redirects, certificates."""

import socket
from base64 import b64encode

import pytest
from fault_server import FIRST_PART, PAGE, Fault

from lightning_shards.errors import ConfigError, IndexMismatchError, StorageError
from lightning_shards.remote import http
from lightning_shards.remote.backend import RetryPolicy
from lightning_shards.remote.transport import RemoteTransport, TransportSettings
from tests.remote.conftest import QUICK, url_of
from tests.remote.contract import DATA

pytestmark = pytest.mark.network

RANGES = [(0, 9), (5, 99), (99_000, 200_000), (0, 200_000), (100_003, 100_009), (7, 7)]
IN_PARTS = Fault(
    "parts",
    len(DATA),
    (("Content-Length", ""), ("Transfer-Encoding", "chunked"), ("Connection", "close")),
)


@pytest.fixture
def transport(make_transport):
    return make_transport()


@pytest.mark.parametrize(
    ("face", "begin", "end"),
    [*(("http", *ends) for ends in RANGES), ("ais", 5, 99), ("hf", 5, 99)],
)
def test_a_range_is_cut_out_of_a_whole_object(face, begin, end, transport, url, server):
    server.always = Fault("whole")
    body = transport.read(url_of(server, face, "a.tar"), begin, end)
    assert body == (DATA[begin:end], server.etag("data/a.tar"), len(DATA), False)


def test_a_whole_object_above_the_limit_is_refused_and_not_read(transport, url, server):
    server.always = Fault("whole", None, (("Content-Length", str(http.LARGEST_WHOLE + 1)),))
    with pytest.raises(StorageError, match=r"all of an object that is large.*try 1 of 10.*ranges"):
        transport.read(url, 5, 9)


def test_a_whole_object_of_unknown_length_is_refused(transport, url, server):
    server.always = Fault("whole", None, (("Content-Length", ""),))
    with pytest.raises(StorageError, match="unknown length"):
        transport.read(url, 5, 9)


def test_a_small_object_in_parts_is_read_and_a_large_one_is_a_stream(
    transport, url, server, monkeypatch
):
    server.always = IN_PARTS
    assert transport.read(url, 5, 9) == (DATA[5:9], server.etag("data/a.tar"), len(DATA), False)
    monkeypatch.setattr(http, "LARGEST_IN_PARTS", FIRST_PART + 1)
    first = transport.read(url, 0, 9)
    server.faults = [IN_PARTS._replace(value=5_000)]  # which breaks off
    assert b"".join(transport.read_forward(url, first)) == DATA
    assert transport.counts.repeated == 1
    with pytest.raises(StorageError, match=r"unknown length.*try 1 of 10"):
        transport.read(url, 5, 9)


def test_a_whole_object_that_breaks_off_is_no_short_range(transport, url, server):
    server.always = Fault("whole", None, (("Content-Length", str(len(DATA) + 5)),))
    with pytest.raises(StorageError, match="stalled"):
        transport.read(url, 0, 200_000)


@pytest.mark.parametrize("checks_if_match", [True, False])
@pytest.mark.parametrize("has_etags", [True, False])
def test_a_break_is_followed_by_the_same_version_alone(
    checks_if_match, has_etags, transport, url, server
):
    """Where no ETag proves that it is the same, its beginning is compared."""
    server.has_etags, server.checks_if_match = has_etags, checks_if_match
    server.faults = [Fault("cut", 40_000)]
    body = transport.read(url, 0, 90_000)
    assert body.data == DATA[:90_000]
    asked = server.asked[-1].headers
    assert asked["range"] == f"bytes={40_000 * has_etags}-89999"
    assert asked.get("if-match") == (body.version if has_etags else None)
    assert transport.counts == (2, 1, 90_000 + 40_000 * (not has_etags))
    server.faults = [Fault("cut", 40_000), Fault("replace")]
    with pytest.raises(IndexMismatchError, match="another version"):
        transport.read(url, 0, 90_000)


def test_one_of_the_same_version_and_another_size_is_an_error(transport, url, server):
    longer = f"bytes 44000-89999/{len(DATA) + 1}"
    server.faults = [Fault("cut", 44_000)]
    server.always = Fault("headers", None, (("Content-Range", longer),))
    with pytest.raises(IndexMismatchError, match=f"{len(DATA) + 1} bytes"):
        transport.read(url, 0, 90_000)


@pytest.mark.parametrize(
    ("page", "headers"),
    [
        (PAGE, ()),
        (b"\n <HTML lang=en>", ()),
        (b"Please log in", (("Content-Type", "text/html; charset=utf-8"),)),
    ],
)
def test_a_page_for_people_is_final_only_as_the_first_answer(page, headers, transport, url, server):
    server.faults = [Fault("page", page, headers), None, Fault("page", page, headers)]
    with pytest.raises(StorageError, match=r"page for people .*try 1 of 10") as caught:
        transport.read(url, 0, 9)
    assert "s3cr3t" not in str(caught.value)
    transport.read(url, 0, 9)
    assert transport.read(url, 5, 9).data == DATA[5:9]
    assert transport.counts.repeated == 1


def test_a_server_without_tls_is_told_at_once(transport, url):
    with pytest.raises(StorageError, match=r"does not speak TLS at this port \(try 1 of 10"):
        transport.read(url.replace("http://", "https://"), 0, 9)


def test_a_certificate_of_a_variable_is_trusted_and_others_are_not(tls_server, monkeypatch):
    server, ca = tls_server
    server.reset()
    server.objects["data/a.tar"] = DATA
    url, settings = url_of(server, "https", "a.tar"), TransportSettings(policy=QUICK)
    with pytest.raises(StorageError, match=r"not trusted.*try 1 of 10.*REQUESTS_CA_BUNDLE"):
        RemoteTransport(settings).read(url, 0, 9)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", ca)
    assert RemoteTransport(settings).read(url, 0, 9).data == DATA[:9]


def test_a_server_may_answer_with_less_than_was_asked_for(transport, url, server):
    server.always = Fault("short", 4_000)
    assert transport.read(url, 10, 80_000).data == DATA[10:80_000]
    assert transport.counts[:2] == (20, 0)


@pytest.mark.parametrize(
    "content_range", ["", "bytes */9", "bytes 5-4/9", "bytes 5-9/9", "items 0-8/9", "bytes 0-8/*"]
)
def test_an_answer_that_does_not_say_what_it_is_is_refused(content_range, transport, url, server):
    server.faults = [Fault("headers", None, (("Content-Range", content_range),))]
    assert transport.read(url, 0, 9).data == DATA[:9]
    assert transport.counts.repeated == 1


def test_a_range_of_what_is_stored_compressed_is_read(transport, url, server):
    server.always = Fault("headers", None, (("Content-Encoding", "gzip"),))
    assert transport.read(url, 5, 9).data == DATA[5:9]


def test_connections_are_kept(transport, url, server):
    server.connections = 0
    for begin in range(0, 90_000, 3_000):
        transport.read(url, begin, begin + 3_000)
    assert server.connections == 1


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


def test_five_redirects_are_followed_and_six_are_not(transport, url, server):
    server.faults = [Fault("redirect", "/data/a.tar")] * 5
    assert transport.read(url, 0, 9).data == DATA[:9]
    server.faults = [Fault("redirect", "/data/a.tar")] * 6
    with pytest.raises(StorageError, match=r"redirects more than 5 times \(try 1 of"):
        transport.read(url, 0, 9)


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "http://[::1/x", "http://host:port/", "data:text/plain,x"],
)
def test_redirects_lead_to_http_alone(location, transport, url, server):
    server.always = Fault("redirect", location)
    with pytest.raises(StorageError, match="redirects to what is no http") as caught:
        transport.read(url, 0, 9)
    assert location not in str(caught.value)


@pytest.mark.parametrize("url", ["http://", "https://host:port/a", "http://me:s3cr/3t@host/a.tar"])
def test_a_url_that_cannot_be_read_is_an_error(url, transport):
    with pytest.raises(StorageError, match=r"the URL cannot be read.*try 1 of") as caught:
        transport.read(url, 0, 9)
    assert "s3cr" not in str(caught.value)


def test_a_server_that_is_not_there_is_an_error_after_all_tries(make_transport):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        slept = []
        transport = make_transport(RetryPolicy(), sleep=slept.append)
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/a"
        with pytest.raises(StorageError, match=r"no connection can be made \(try 10 of 10\)"):
            transport.read(url, 0, 9)
    assert len(slept) == 9


def test_retry_after_is_waited_for(make_transport, url, server):
    slept = []
    transport = make_transport(RetryPolicy(), sleep=slept.append)
    asked = ("7", "99", "Mon, 23 Nov 2099 20:00:00 GMT", "soon")
    server.faults = [Fault("status", 503, (("Retry-After", seconds),)) for seconds in asked]
    assert transport.read(url, 0, 9).data == DATA[:9]
    assert slept[:3] == [7, 60, 60]
    assert slept[3] < 15


@pytest.mark.parametrize("face", ["http", "s3", "az", "ais"])
def test_an_object_is_written(face, transport, server):
    server.faults = [Fault("status", 503)]
    transport.write(url_of(server, face, "a.json"), b"new")
    assert server.objects["data/a.json"] == b"new"


def test_the_hub_is_not_written(transport, server):
    with pytest.raises(ConfigError, match="written by commits"):
        transport.write(url_of(server, "hf", "a.json"), b"new")


def test_the_gateway_of_ais_is_an_option_or_a_variable(url, server, monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with pytest.raises(ConfigError, match="AIS_ENDPOINT"):
        RemoteTransport().read("ais://data/a.tar", 0, 9)
    monkeypatch.setenv("AIS_ENDPOINT", server.url)
    assert RemoteTransport().read("ais://data/a.tar", 0, 9).data == DATA[:9]
