"""How the hosts of shards are reached, by which proxy, and which shards are local files."""

from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from socket import getaddrinfo
from urllib.parse import urlsplit

from lightning_shards.errors import ConfigError, ShardNotFoundError
from lightning_shards.shards.urls import (
    is_local,
    redact,
    require_local_shards,
    split_url,
)


def proxy_of(url: str) -> str:
    """The proxy that requests for this URL go through, with its user; the empty text if none."""
    from urllib.request import getproxies, proxy_bypass  # TLS, which local shards do not need

    proxies, parts = getproxies(), urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all", "")
    is_exempt = proxy_bypass(parts.netloc.rpartition("@")[2])
    if not proxy or is_exempt or _is_in_networks(parts.hostname or "", proxies.get("no", "")):
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


def require_shards(urls: Sequence[str]) -> list[str]:
    """The shards, each once, if all local ones exist and the hosts of remote ones are known.

    Raises:
        ShardNotFoundError: A shard does not exist, or a host has no address.
    """
    require_local_shards(urls)
    require_hosts(urls)
    return list(dict.fromkeys(urls))


def require_local(urls: Sequence[str], what: str) -> list[str]:
    """The shards, each once, if all of them are files of this machine.

    Raises:
        ConfigError: A shard is remote.
        ShardNotFoundError: A shard does not exist.
    """
    remote = [url for url in urls if not is_local(url)]
    if remote:
        raise ConfigError(
            f"{what} reads local shards only, and {len(remote)} of {len(urls)} are remote, first "
            f"{redact(remote[0])!r}; copy them here, or mount the bucket"
        )
    return require_shards(urls)


def file_name(url: str) -> str:
    """The name of a shard, with a stand-in where a URL has none.

    >>> file_name("https://user:secret@host/data/000.tar?signature=secret")
    '000.tar'
    >>> file_name("pipe:aws s3 cp s3://bucket/000.tar -")
    'shard.tar'
    """
    folder, name = split_url(url)
    return "shard.tar" if folder == "pipe:" or name in ("", ".", "..") else name
