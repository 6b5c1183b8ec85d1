"""Shards that are only streamed: those of `pipe:`, `scp:` and other schemes without ranges.

webdataset's openers start the programs that give them; nothing else of webdataset is used here. It
is imported with the first such shard, because it imports torch.
"""

import re
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from lightning_shards.errors import ConfigError
from lightning_shards.shards.storage.protocol import ShardStat, Storage
from lightning_shards.shards.urls import redact

_EXIT_STATUS = re.compile(r"exit (-?\d+) \(read\)")
"""The text by which webdataset's `Pipe` says that its program failed; the command is before it."""


class StreamOnlyStorage(Storage):
    """Remote shards that a program gives from their start to their end."""

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
        """The program's output. Its exit status is checked; it is killed if it is left early."""
        return _opened(url)


@contextmanager
def _opened(url: str) -> Generator[Any, None, None]:
    from webdataset.gopen import Pipe, gopen

    stream = cast("Any", gopen(url))
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


def program_problem(error: Exception) -> str:
    """The message without streams, URLs and commands, which may hold secrets."""
    text = str(error.args[0]) if error.args else ""
    status = _EXIT_STATUS.search(text)
    if status:
        return f"the program that fetches it ended with status {status[1]}"
    return text.partition(" @ ")[0]


def _kill(stream: Any) -> None:
    """End the program of a Pipe; closing it would wait for a program that waits for its server."""
    stream.proc.kill()
    stream.proc.wait()
    stream.stream.close()
