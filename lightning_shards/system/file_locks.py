"""Locks of files, which end with the process that holds them.

They are those of `flock`, of an open file each, so that threads of one process exclude each other,
too.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Final, NamedTuple

_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def is_locked(file: int, *, shared: bool = False, wait_s: float = 0.0) -> bool:
    """Lock an open file; whether that was possible in time.

    Args:
        file: Its descriptor.
        shared: Whether others may hold the lock at the same time, shared, too.
        wait_s: How long to wait for it. The wait ends by itself, even if the process that holds the
            lock is stopped.

    Raises:
        OSError: The file system has no locks.
    """
    end, pause = perf_counter() + wait_s, _FIRST_PAUSE_S
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if perf_counter() >= end:
                return False
        else:
            return True
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


@contextmanager
def locked_file(path: Path, wait_s: float = 0.0) -> Generator[int | None, None, None]:
    """An open file with its lock for as long as the block runs; None if the lock is not free.

    Raises:
        OSError: The file cannot be opened, or its file system has no locks.
    """
    file = os.open(path, _FLAGS, 0o600)
    try:
        if not is_locked(file, wait_s=wait_s):
            yield None
            return
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # also where a forked process has a copy of it
    finally:
        os.close(file)


class TakenLock(NamedTuple):
    """A lock that was given.

    Attributes:
        is_sure: Whether all others are kept out; not where the file system has no locks.
    """

    is_sure: bool


class FileLocks:
    """Many locks, each a number, in a file each.

    Args:
        path: What the names of the files begin with; a file of this name is made with the first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self, number: int, wait_s: float = 0.0) -> Generator[TakenLock | None, None, None]:
        """The lock for as long as the block runs; None if it is not free.

        Raises:
            OSError: The file cannot be opened.
        """
        self.path.touch(0o600)
        file = os.open(f"{self.path}-{number:x}", _FLAGS, 0o600)
        try:
            yield self._taken(file, wait_s)
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def is_free(self, number: int) -> bool | None:
        """Whether this lock is not held; None if the system does not say."""
        with self.held(number) as lock:
            return False if lock is None else lock.is_sure or None

    def _taken(self, file: int, wait_s: float) -> TakenLock | None:
        try:
            return TakenLock(is_sure=True) if is_locked(file, wait_s=wait_s) else None
        except OSError:
            return TakenLock(is_sure=False)
