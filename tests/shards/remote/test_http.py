"""Ranges over http: servers without ranges, pages for people, redirects, proxies."""

import socket
from base64 import b64encode

import pytest
from fault_server import FIRST_PART, PAGE, Fault

from lightning_shards.errors import ConfigError, StorageError
from lightning_shards.shards.remote import http
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
from tests.shards.remote.conftest import url_of
from tests.shards.remote.contract import DATA

pytestmark = pytest.mark.network

RANGES = [(0, 9), (5, 99), (99_000, 200_000), (0, 200_000), (100_003, 100_009), (7, 7)]


IN_PARTS = Fault("parts", len(DATA), (("Content-Length", ""), ("Transfer-Encoding", "chunked")))


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
    assert (body.data, body.size, body.version) == (
        DATA[begin:end],
        len(DATA),
        server.etag("data/a.tar"),
    )


def test_a_whole_object_above_the_limit_is_refused_and_not_read(transport, url, server):
    server.always = Fault("whole", None, (("Content-Length", str(http.LARGEST_WHOLE + 1)),))
    with pytest.raises(StorageError, match=r"all of its 67,108,865 bytes.*try 1 of 10.*ranges"):
        transport.read(url, 5, 9)


@pytest.mark.parametrize("length", ["", "9x"], ids=lambda length: length[:3])
def test_a_whole_object_of_unknown_length_is_refused(length, transport, url, server):
    server.always = Fault("whole", None, (("Content-Length", length),))
    with pytest.raises(StorageError, match="unknown length"):
        transport.read(url, 5, 9)


@pytest.mark.parametrize("spare", [0, 1])
def test_an_object_in_parts_is_read_up_to_a_limit(spare, transport, url, server, monkeypatch):
    monkeypatch.setattr(http, "LARGEST_IN_PARTS", len(DATA) + spare - FIRST_PART)
    server.always = IN_PARTS
    if spare:
        assert transport.read(url, 5, 9).data == DATA[5:9]
        return
    with pytest.raises(StorageError, match=r"unknown length.*try 1 of 10"):
        transport.read(url, 5, 9)


def test_an_object_in_parts_that_breaks_off_is_no_small_one(transport, url, server):
    server.faults = [IN_PARTS._replace(value=5_000)]
    assert transport.read(url, 0, 200_000).data == DATA
    assert transport.counts.repeated == 1


def test_a_whole_object_that_breaks_off_is_no_short_range(transport, url, server):
    longer = (("Content-Length", str(len(DATA) + 5)),)
    server.always = Fault("whole", None, longer)
    with pytest.raises(StorageError, match="stalled"):
        transport.read(url, 0, 200_000)


def test_a_body_that_broke_off_goes_on_from_a_whole_object(transport, url, server):
    server.faults = [Fault("cut", 40_000), Fault("whole")]
    assert transport.read(url, 0, 90_000).data == DATA[:90_000]


@pytest.mark.parametrize(
    ("page", "headers"),
    [
        (PAGE, ()),
        (b"\n <HTML lang=en>", ()),
        (b"Please log in", (("Content-Type", "text/html; charset=utf-8"),)),
    ],
)
def test_a_page_for_people_is_no_shard(page, headers, transport, url, server):
    server.always = Fault("page", page, headers)
    with pytest.raises(StorageError, match="page for people") as caught:
        transport.read(url, 0, 9)
    assert "s3cr3t" not in str(caught.value)


def test_a_server_without_tls_is_told_at_once(transport, url, server):
    with pytest.raises(StorageError, match=r"does not speak TLS at this port \(try 1 of.*http://"):
        transport.read(url.replace("http://", "https://"), 0, 9)


def test_a_url_whose_password_would_end_its_host_is_not_asked_for(transport, url, server):
    secret = url.replace("://", "://me:secr/et@")
    with pytest.raises(StorageError, match=r"the password holds.*write %2F") as caught:
        transport.read(secret, 0, 9)
    assert "secr/" not in str(caught.value)
    assert not server.asked


def test_a_server_may_answer_with_less_than_was_asked_for(transport, url, server):
    server.always = Fault("short", 4_000)
    assert transport.read(url, 10, 80_000).data == DATA[10:80_000]
    assert transport.counts[:2] == (20, 0)


def test_more_bytes_than_the_range_are_dropped_and_asked_for_again(transport, url, server):
    shorter = (("Content-Range", f"bytes 10-89/{len(DATA)}"),)
    server.faults = [Fault("headers", None, shorter)]
    assert transport.read(url, 10, 100).data == DATA[10:100]
    assert transport.counts.repeated == 1


@pytest.mark.parametrize(
    "content_range",
    [
        *("", "bytes */9", "bytes 5-4/9", "bytes 5-9/9", "items 0-8/9", "bytes 0-8/*"),
    ],
    ids=lambda content_range: ascii(content_range[:16]),
)
def test_an_answer_that_does_not_say_what_it_is_is_refused(content_range, transport, url, server):
    server.faults = [Fault("headers", None, (("Content-Range", content_range),))]
    assert transport.read(url, 0, 9).data == DATA[:9]
    assert transport.counts.repeated == 1


@pytest.mark.parametrize(("kind", "encoding"), [("whole", "BR"), ("longer", "gzip, aws-chunked")])
def test_what_a_server_compresses_is_refused(kind, encoding, transport, url, server):
    server.always = Fault(kind, None, (("Content-Encoding", encoding),))
    with pytest.raises(StorageError, match=r"compresses what it sends.*try 1 of 10.*switch its"):
        transport.read(url, 5, 9)


@pytest.mark.parametrize("encoding", ["identity", "aws-chunked"])
def test_what_it_does_not_compress_is_read(encoding, transport, url, server):
    server.always = Fault("whole", None, (("Content-Encoding", encoding),))
    assert transport.read(url, 5, 9).data == DATA[5:9]


def test_a_range_of_what_is_stored_compressed_is_read(transport, url, server):
    server.always = Fault("headers", None, (("Content-Encoding", "gzip"),))
    assert transport.read(url, 5, 9).data == DATA[5:9]


def test_connections_are_kept(transport, url, server):
    server.connections = 0
    for begin in range(0, 90_000, 3_000):
        transport.read(url, begin, begin + 3_000)
    transport.read(url, 200_000, 200_001)
    assert server.connections == 1


def test_queries_and_passwords_reach_the_server_and_its_host_alone(transport, url, server):
    secret = url.replace("://", "://me:p%40ss@")
    server.faults = [Fault("redirect", "/data/a.tar?other=1"), None]
    assert transport.read(secret, 0, 9).data == DATA[:9]
    first, second = server.asked
    assert first.path == "/data/a.tar?X-Amz-Signature=s3cr3t-query"
    assert second.path == "/data/a.tar?other=1"
    expected = f"Basic {b64encode(b'me:p@ss').decode()}"
    assert first.headers["authorization"] == second.headers["authorization"] == expected


def test_no_credentials_go_to_another_host_nor_back(transport, url, server):
    secret = url.replace("://", "://me:s3cr3t@")
    there = f"http://you:other@127.0.0.1:{server.other_port}/data/a.tar"
    server.faults = [Fault("redirect", there), Fault("redirect", f"{server.url}/data/a.tar"), None]
    assert transport.read(secret, 0, 9).data == DATA[:9]
    assert ["authorization" in each.headers for each in server.asked] == [True, False, False]
    assert all("s3cr3t" not in str(each) for each in server.asked[1:])


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/données/é.tar".encode(), "/data/donn%C3%A9es/%C3%A9.tar"),
        ("/data/\xe9.tar".encode("latin-1"), "/data/%E9.tar"),
        (b"/data/%C3%A9 b.tar?x=1 2&y=%2F", "/data/%C3%A9%20b.tar?x=1%202&y=%2F"),
    ],
)
def test_a_redirect_is_followed_by_its_bytes(transport, url, server, location, path):
    """An escape of it stays, and what is not ASCII is escaped once."""
    for name in ("données/é.tar", "é b.tar", "\ufffd.tar"):
        server.objects[f"data/{name}"] = DATA
    server.faults = [Fault("redirect", location.decode("latin-1")), None]
    assert transport.read(url, 0, 9).data == DATA[:9]
    assert server.asked[1].path == path


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


@pytest.mark.parametrize("url", ["http://", "https://host:port/a"])
def test_a_url_that_cannot_be_read_is_an_error(url, transport):
    with pytest.raises(StorageError, match="the URL cannot be read"):
        transport.read(url, 0, 9)


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
    for seconds in ("7", "99", "soon", "-5", "9" * 99):
        server.faults.append(Fault("status", 503, (("Retry-After", seconds),)))
    assert transport.read(url, 0, 9).data == DATA[:9]
    assert slept[:2] == [7, 60]
    assert max(slept[2:4]) < 15
    assert slept[4] == 60


def test_a_time_that_a_server_asks_to_wait_for_is_one_of_its_own_clock(make_transport, url, server):
    slept = []
    transport = make_transport(RetryPolicy(), sleep=slept.append)
    now = ("Date", "Sun, 22 Nov 2020 20:00:00 GMT")
    asked = ["Sun, 22 Nov 2020 20:00:17 GMT", "Mon, 23 Nov 2020 20:00:00 GMT"]
    asked += ["Sun, 22 Nov 2020 19:00:00 GMT", "Sun, 22 Nov 2020 20:00:17 -0000", "Sun, 22 Nov"]
    server.faults = [Fault("status", 503, (now, ("Retry-After", time))) for time in asked]
    server.faults.append(Fault("status", 503, (("Date", "now"), ("Retry-After", asked[1]))))
    assert transport.read(url, 0, 9).data == DATA[:9]
    assert slept[:2] == [17, 60]
    assert max(slept[2:]) <= 15  # which we choose


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_halves_the_connections_of_the_process(status, make_transport, url, server):
    transport = make_transport(RetryPolicy(), sleep=lambda _: None)
    server.faults = [Fault("status", status)]
    transport.read(url, 0, 9)
    assert transport._of_this_process().connections.limit == 32


@pytest.mark.parametrize("face", ["http", "s3", "az", "ais"])
def test_an_object_is_written(face, transport, server):
    server.faults = [Fault("status", 503)]
    transport.write(url_of(server, face, "a.json"), b"new")
    assert server.objects["data/a.json"] == b"new"


def test_the_hub_is_not_written(transport, server):
    with pytest.raises(ConfigError, match="written by commits"):
        transport.write(url_of(server, "hf", "a.json"), b"new")


def test_a_gateway_is_needed_for_ais():
    with pytest.raises(ConfigError, match="AIS_ENDPOINT"):
        RemoteTransport(TransportSettings()).read("ais://data/a.tar", 0, 9)
