"""Which proxy stands before a host, by the settings of the system or the variables of the network.

They mean what they mean to curl and requests: `http_proxy`, `https_proxy`, `all_proxy`, and
`no_proxy` with hosts, domains, hosts with a port, and networks.
"""

from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from socket import getaddrinfo
from typing import Final
from urllib.parse import urlsplit

from lightning_shards.errors import ShardNotFoundError

_PORTS: Final = {"http": 80, "https": 443}


def proxy_of(url: str) -> str:
    """The proxy that requests for this URL go through, with its user; the empty text if none."""
    from urllib.request import getproxies, proxy_bypass  # TLS, which local shards do not need

    proxies, parts = getproxies(), urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all", "")
    host, port = parts.hostname or "", _PORTS.get(parts.scheme)
    with suppress(ValueError):  # of a port that is no number
        port = parts.port or port
    if not proxy or proxy_bypass(host) or proxy_bypass(f"{host}:{port}"):
        return ""
    if _is_in_networks(host, proxies.get("no", "")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_in_networks(host: str, exempt: str) -> bool:
    """Whether a host is an address in one of the networks of `no_proxy`, as in 10.0.0.0/8."""
    with suppress(ValueError):
        address = ip_address(host)
        for entry in exempt.replace(",", " ").split():
            with suppress(ValueError):
                if address in ip_network(entry.strip("[]"), strict=False):
                    return True
    return False


def require_hosts(urls: Sequence[str]) -> None:
    """Check that the hosts of http(s) URLs have an address, unless a proxy would look them up.

    What reads such shards would try an unknown host again for minutes.

    Raises:
        ShardNotFoundError: A host has no address.
    """
    parts = {urlsplit(url)[:2] for url in urls if url.lower().startswith(("http:", "https:"))}
    for scheme, address in parts:
        host = urlsplit(f"//{address}").hostname
        if not host or proxy_of(f"{scheme}://{address}/"):
            continue
        try:
            getaddrinfo(host, None)
        except OSError as error:
            raise ShardNotFoundError(
                f"the host {host!r} has no address ({error}); check the URL and the network"
            ) from error
