"""Shards as files of this machine: local ones as they are, remote ones as temporary copies."""

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir
from typing import IO, Final, NamedTuple, cast

from lightning_shards.errors import ConfigError, ShardError, StorageError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.proxies import require_hosts
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import Storages, remote_storages
from lightning_shards.shards.storage.streaming import program_problem
from lightning_shards.shards.urls import (
    is_local,
    redact,
    require_local_shards,
    split_url,
)

_CHUNK: Final = 1 << 20


class LocalShard(NamedTuple):
    """A shard that can be read as a file.

    Attributes:
        path: Path of the shard, or of the copy of a remote one.
        cache: Where its member table is kept; the table of a copy is removed with the copy.
    """

    path: str
    cache: CacheFolder


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


@contextmanager
def local_copy(
    url: str, cache: CacheFolder, settings: TransportSettings | None = None
) -> Generator[LocalShard, None, None]:
    """A local shard as it is; a remote one as a whole copy that is removed when the block ends.

    Errors that the block raises name the URL and not the copy.

    Args:
        url: The shard.
        cache: Where member tables of local shards are kept.
        settings: How remote shards are reached; None: as the tools of their stores are set up.

    Raises:
        ShardNotFoundError: There is no such shard.
        FileAccessError: Its store refuses to give it.
        IndexMismatchError: It was replaced while it was fetched.
        StorageError: It could not be fetched to its end.
        ConfigError: There is no room for the copy, or its store cannot be reached as it is set up.
    """
    if is_local(url):
        yield LocalShard(url, cache)
        return
    with TemporaryDirectory(prefix="lightning-shards-") as folder, TemporaryFile() as file:
        _fetch(url, file, settings or TransportSettings(cache_dir=str(cache.root)))
        # The data has no name but this link, so that a killed program leaves no data behind.
        path = Path(folder, file_name(url))
        path.symlink_to(f"/proc/self/fd/{file.fileno()}")
        try:
            yield LocalShard(str(path), CacheFolder(folder))
        except ShardError as error:
            raise type(error)(str(error).replace(str(path), redact(url))) from None


def file_name(url: str) -> str:
    """The name of a shard, with a stand-in where a URL has none.

    >>> file_name("https://user:secret@host/data/000.tar?signature=secret")
    '000.tar'
    >>> file_name("pipe:aws s3 cp s3://bucket/000.tar -")
    'shard.tar'
    """
    folder, name = split_url(url)
    return "shard.tar" if folder == "pipe:" or name in ("", ".", "..") else name


def _fetch(url: str, file: IO[bytes], settings: TransportSettings) -> None:
    size, problem = 0, ""
    try:
        with (
            closing(Storages(remote_storages(settings))) as storages,
            storages.of(url).open_stream(url) as stream,
        ):
            while chunk := cast("bytes", stream.read(_CHUNK)):
                _write(file, chunk, url)
                size += len(chunk)
    except ShardError:  # it names the bytes and the URL
        raise
    except Exception as error:  # noqa: BLE001 whatever webdataset or its programs raise
        problem = f"{type(error).__name__}: {program_problem(error)}"
    if problem:  # raised outside `except`, so that the error with the URL is not its context
        raise StorageError(
            f"{redact(url)} cannot be fetched: after {size:,} bytes {problem}; check the URL, the "
            "network, and who may read it"
        )


def _write(file: IO[bytes], chunk: bytes, url: str) -> None:
    try:
        file.write(chunk)
        file.flush()
    except OSError as error:
        raise ConfigError(
            f"the copy of {redact(url)} cannot be written to {gettempdir()}: {error.strerror}; set "
            "TMPDIR to a folder with room for one shard of each process, or give fewer --processes"
        ) from error
