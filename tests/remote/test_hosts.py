"""Proxies: which one stands before a host, what is exempt, and that messages name it."""

import pytest

from lightning_shards.errors import ShardNotFoundError, StorageError
from lightning_shards.shards.hosts import proxy_of, require_hosts

pytestmark = pytest.mark.network

PROXY = "http://me:s3cr3t@proxy.invalid:8080"
URL = "http://elsewhere.invalid/a.tar"


@pytest.fixture
def set_variables(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def set_them(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_them


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ""),
        ({"http_proxy": PROXY}, PROXY),
        ({"http_proxy": "proxy:1"}, "http://proxy:1"),
        ({"https_proxy": PROXY}, ""),
        ({"all_proxy": PROXY}, PROXY),
        ({"ALL_PROXY": PROXY, "http_proxy": "http://nearer:1"}, "http://nearer:1"),
        ({"all_proxy": PROXY, "no_proxy": "*"}, ""),
    ],
)
def test_the_variables_of_the_network_say_which_proxy_it_is(variables, expected, set_variables):
    set_variables(**variables)
    assert proxy_of(URL) == expected


@pytest.mark.parametrize(
    ("url", "is_exempt"),
    [
        ("http://10.1.2.3/a.tar", True),
        ("http://11.1.2.3/a.tar", False),
        ("http://192.168.0.7:8080/a.tar", True),
        ("http://[fd00::7]:9000/a.tar", True),
        ("http://[fe00::7]:9000/a.tar", False),
        ("http://minio:9000/a.tar", True),
        ("http://minio:9001/a.tar", False),
        ("http://minio/a.tar", False),
        ("http://me:pass@deep.corp.example/a.tar", True),
        ("http://corp.example:99/a.tar", True),
        ("http://notcorp.example/a.tar", False),
    ],
)
def test_hosts_ports_domains_and_networks_can_be_exempt(url, is_exempt, set_variables):
    exempt = "10.0.0.0/8, 192.168.0.7,[fd00::]/8,fd00::/8,minio:9000,.corp.example,x/y"
    set_variables(all_proxy=PROXY, no_proxy=exempt)
    assert (not proxy_of(url)) == is_exempt


def test_a_proxy_looks_hosts_up_itself(set_variables):
    set_variables(all_proxy=PROXY)
    require_hosts([URL, "http://[::1]:8080/d/x.tar", "http://elsewhere.invalid:port/"])
    set_variables(no_proxy="elsewhere.invalid")
    with pytest.raises(ShardNotFoundError, match=r"'elsewhere\.invalid' has no address"):
        require_hosts([URL])


def test_a_proxy_is_asked_for_what_it_stands_before_by_its_user(
    server, make_transport, set_variables
):
    server.objects[URL] = b"bytes"
    set_variables(http_proxy=server.url.replace("://", "://me:s3cr3t@"))
    assert make_transport().read(URL, 0, 9).data == b"bytes"
    assert server.asked[0].path == URL
    assert server.asked[0].headers["proxy-authorization"].startswith("Basic ")


@pytest.mark.parametrize("url", [URL, "https://elsewhere.invalid/a.tar"])
def test_a_proxy_that_cannot_be_reached_is_told(url, make_transport, set_variables):
    set_variables(all_proxy="http://me:s3cr3t@127.0.0.1:9")
    with pytest.raises(StorageError, match="the proxy cannot be reached, or refuses") as caught:
        make_transport().read(url, 0, 9)
    assert "s3cr3t" not in str(caught.value)


def test_a_proxy_of_another_kind_is_refused(make_transport, set_variables):
    set_variables(ALL_PROXY="socks5h://me:s3cr3t@127.0.0.1:9")
    with pytest.raises(StorageError, match=r"of another kind .*try 1 of .*no_proxy") as caught:
        make_transport().read(URL, 0, 9)
    assert "s3cr3t" not in str(caught.value)
