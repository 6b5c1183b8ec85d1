"""Shards that are only streamed: those of `pipe:`, `scp:` and other schemes without ranges.

webdataset's openers start the programs that give them; nothing else of webdataset is used here. It
is imported with the first such shard, because it imports torch.
"""

import re
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from subprocess import TimeoutExpired
from typing import Any, Final, cast

from lightning_shards.errors import ConfigError, DamagedShardError, ShardError
from lightning_shards.shards.storage.protocol import ShardStat, Storage
from lightning_shards.shards.urls import redact

_EXIT_STATUS = re.compile(r"exit (-?\d+) \(read\)")
"""The text by which webdataset's `Pipe` says that its program failed; the command is before it."""

_ENDED: Final = "the program that fetches it ended with status"
_END_S: Final = 0.5
"""A program that has closed its output ends within so many seconds."""


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
    except BaseException as error:
        if not isinstance(stream, Pipe):
            stream.close()
            raise
        is_of_others = isinstance(error, ShardError) and not isinstance(error, DamagedShardError)
        is_of_reading = isinstance(error, Exception) and not is_of_others
        status = _failed_with(stream) if is_of_reading else 0
        _kill(stream)
        if not status:
            raise
    else:
        while stream.read(1 << 16):
            pass  # bytes after the archive are read too, so that the program can end by itself
        stream.close()  # a Pipe raises here when its program failed
        return
    # What it gave until then, such as no byte at all, says less than this
    raise OSError(f"{_ENDED} {status}")


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
        return f"{_ENDED} {status[1]}"
    return text.partition(" @ ")[0]


def _failed_with(stream: Any) -> int:
    """The status of the Pipe's program if it has failed; 0 if it is still running."""
    with suppress(TimeoutExpired):
        return stream.proc.wait(_END_S)
    return 0


def _kill(stream: Any) -> None:
    """End the program of a Pipe; closing it would wait for a program that waits for its server."""
    stream.proc.kill()
    stream.proc.wait()
    stream.stream.close()
