"""Shards that the program of a `pipe:` URL gives, from their start to their end."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from signal import SIGPIPE
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.storage.protocol import ShardStat, Storage
from lightning_shards.shards.urls import redact

_END_S: Final = 0.5
"""A program that has closed its output ends within so many seconds."""

_WELL: Final = (0, 128 + SIGPIPE)


class StreamOnlyStorage(Storage):
    """Remote shards that a program gives from their start to their end."""

    def stat(self, url: str) -> ShardStat:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"{redact(url)} can only be read from its start to its end; take reader='stream', copy "
            "it here, or mount the bucket"
        )

    def read(self, url: str, start: int, stop: int, stat: tuple[int, int] | None = None) -> bytes:
        """Refuse, as `stat` does."""
        return bytes(self.stat(url).size)

    @contextmanager
    def open_stream(self, url: str) -> Generator[IO[bytes]]:
        """The program's output. Its exit status is checked; it is killed if it is left early."""
        command = url.strip().partition(":")[2]
        with Popen(command, stdout=PIPE, shell=True) as program:  # noqa: S602 switched on
            assert program.stdout is not None
            try:
                yield program.stdout
                while program.stdout.read(1 << 16):
                    pass  # bytes after the archive are read too, so that the program can end
                program.wait()
            except OSError:
                with suppress(TimeoutExpired):  # its failure says more than what it gave
                    program.wait(_END_S)
                if program.returncode in (None, *_WELL):
                    raise
            finally:
                program.kill()
        if program.returncode not in _WELL:
            raise OSError(f"the program that fetches it ended with status {program.returncode}")
