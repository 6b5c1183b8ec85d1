"""Fetching of remote shards: as a stream of bytes, or as a temporary file of this machine.

webdataset's openers fetch them (with curl, gsutil and others); nothing else of webdataset is used
here. It is imported with the first remote shard, because it imports torch.
"""

import re
from base64 import b64encode
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir
from typing import IO, Any, Final, NamedTuple, cast
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from lightning_shards.errors import (
    ConfigError,
    DamagedShardError,
    FileAccessError,
    ShardError,
    ShardNotFoundError,
)
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.protocol import ShardStat, Storage
from lightning_shards.shards.urls import (
    is_local,
    redact,
    require_hosts,
    require_local_shards,
    split_url,
)

_CHUNK: Final = 1 << 20

_ANSWER_S: Final = 10.0
"""Seconds to wait for a server that is asked why it refuses a shard."""

_GONE: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_FORBIDDEN: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

_ADDRESS = re.compile(r"https?://(?:[^/@\[\]\s]*@)?\[[0-9A-Fa-f:.%\w]+\]")
"""The start of a URL up to the end of an IPv6 address."""

_EXIT_STATUS = re.compile(r"exit (-?\d+) \(read\)")
"""The text by which webdataset's `Pipe` says that its program failed; the command is before it."""


class CommandStorage(Storage):
    """Remote shards that webdataset's openers can only stream."""

    has_ranges = False

    def stat(self, url: str) -> ShardStat:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise _only_streamed(url)

    def read(self, url: str, start: int, stop: int, stat: tuple[int, int] | None = None) -> bytes:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise _only_streamed(url)

    def open_stream(self, url: str) -> AbstractContextManager[Any]:
        """What `opened` gives."""
        return opened(url)


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
def local_copy(url: str, cache: CacheFolder) -> Generator[LocalShard, None, None]:
    """A local shard as it is; a remote one as a whole copy that is removed when the block ends.

    Errors that the block raises name the URL and not the copy.

    Raises:
        DamagedShardError: The shard cannot be fetched to its end.
        ConfigError: There is no room for the copy.
    """
    if is_local(url):
        yield LocalShard(url, cache)
        return
    with TemporaryDirectory(prefix="lightning-shards-") as folder, TemporaryFile() as file:
        _fetch(url, file)
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


@contextmanager
def opened(url: str) -> Generator[Any, None, None]:
    """A remote shard's bytes. The program that fetches them is checked, or killed if left early."""
    from webdataset.gopen import Pipe, gopen

    stream = cast("Any", gopen(plain_url(url)))
    try:
        yield stream
    except BaseException:
        if isinstance(stream, Pipe):
            _kill(stream)
        else:
            stream.close()
        raise
    while stream.read(1 << 16):
        pass  # bytes after the archive are read too, so that the program can end by itself
    stream.close()  # a Pipe raises here when its program failed


def _only_streamed(url: str) -> ConfigError:
    return ConfigError(
        f"{redact(url)} can only be read from its start to its end; take reader='stream', copy it "
        "here, or mount the bucket"
    )


def plain_url(url: str) -> str:
    """The URL with brackets and braces escaped: curl would expand [1-2] and {a,b}.

    The brackets of an IPv6 address stay, because curl knows them.

    >>> plain_url("http://[::1]:8080/a[1-2].tar")
    'http://[::1]:8080/a%5B1-2%5D.tar'
    """
    if not url.startswith("http"):
        return url
    head = _ADDRESS.match(url)
    start = head.end() if head else 0
    return url[:start] + quote(url[start:], safe="%/:=&?~#+!$,;'@()*")


def fetch_problem(error: Exception) -> str:
    """The message without streams, URLs and commands, which may hold secrets."""
    text = str(error.args[0]) if error.args else ""
    status = _EXIT_STATUS.search(text)
    if status:
        return f"the program that fetches it ended with status {status[1]}"
    return text.partition(" @ ")[0]


def http_refusal(url: str) -> HTTPStatus | None:
    """The status by which a server refuses an http(s) shard.

    None if it gives the shard or does not answer, and for every other URL. This is one request.
    """
    if not url.lower().startswith(("http://", "https://")):
        return None
    parts = urlsplit(plain_url(url))
    user, at, host = parts.netloc.rpartition("@")
    headers = {"Range": "bytes=0-0"}
    if at:
        headers["Authorization"] = f"Basic {b64encode(unquote(user).encode()).decode()}"
    try:
        request = Request(parts._replace(netloc=host).geturl(), headers=headers)  # noqa: S310
        with urlopen(request, timeout=_ANSWER_S):  # noqa: S310
            return None
    except HTTPError as error:
        error.close()
        return HTTPStatus(error.code) if error.code in set(HTTPStatus) else None
    except (OSError, HTTPException, ValueError):
        return None


def require_given(url: str) -> None:
    """Check that the server of an http(s) shard does not refuse it; every other URL passes.

    Raises:
        ShardNotFoundError: It answers that there is no such shard.
        FileAccessError: It answers that the shard may not be read.
    """
    status = http_refusal(url)
    if status is None:
        return
    if status in _GONE:
        raise ShardNotFoundError(
            f"{redact(url)} does not exist: its server answers {_shown(status)}; check the URL and "
            "the numbers in its braces"
        )
    if status in _FORBIDDEN:
        raise FileAccessError(
            f"{redact(url)} may not be read: its server answers {_shown(status)}; check who may "
            "read it, and whether its signature has expired"
        )


def _shown(status: HTTPStatus) -> str:
    return f"{status.value} {status.phrase}"


def _kill(stream: Any) -> None:
    """End the program of a Pipe; closing it would wait for a program that waits for its server."""
    stream.proc.kill()
    stream.proc.wait()
    stream.stream.close()


def _fetch(url: str, file: IO[bytes]) -> None:
    size, problem = 0, ""
    try:
        with opened(url) as stream:
            while chunk := cast("bytes", stream.read(_CHUNK)):
                _write(file, chunk, url)
                size += len(chunk)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 whatever webdataset or its programs raise
        problem = f"{type(error).__name__}: {fetch_problem(error)}"
    if problem:  # raised outside `except`, so that the error with the URL is not its context
        status = None if size else http_refusal(url)
        problem = problem if status is None else f"the server answers {_shown(status)}"
        raise DamagedShardError(
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
