"""Which of the shards that a user named can be read, and which are files of this machine."""

from collections.abc import Sequence

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.proxies import require_hosts
from lightning_shards.shards.urls import (
    is_local,
    redact,
    require_local_shards,
    split_url,
)


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
