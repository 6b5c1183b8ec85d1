"""Locks on single bytes of one file, which end with the process that holds them.

They are locks of an open file description, so that threads of one process exclude each other, too.
Whoever rests on them saves work and nothing else: a file system may have none, or fail to answer,
and then each lock is given to all who ask. Such a lock says that it is not sure, and nothing that
could be another process's may be removed under it.
"""

import fcntl
import os
import struct
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Final, NamedTuple

_HAS_BYTES: Final = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
_NUM_FILES: Final = 64  # where only whole files can be locked
_NUM_NAMED: Final = 2  # numbers that share their file with no other
_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02
_OF_FILES: Final = {
    fcntl.F_RDLCK: fcntl.LOCK_SH,
    fcntl.F_WRLCK: fcntl.LOCK_EX,
    fcntl.F_UNLCK: fcntl.LOCK_UN,
}
_TRIES: Final = 3  # until others may share a lock: they would wait for it in vain


class TakenLock(NamedTuple):
    """A lock that was given.

    Attributes:
        file: The open file that holds it; the lock ends with `close`, or when this and its copies
            are closed.
        number: Which lock.
        is_sure: Whether all others are kept out. If not, the system did not say who has the lock.
    """

    file: int
    number: int
    is_sure: bool

    def close(self) -> None:
        """Give the lock back, also where a process was forked meanwhile and has a copy of it."""
        _try_lock(self.file, self.number, fcntl.F_UNLCK)
        os.close(self.file)


class FileLocks:
    """Many locks, each a number, in one file.

    Args:
        path: The file, which is made if it is missing. Its contents are not touched.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self, number: int, *, shared: bool = False, wait_s: float = 0.0) -> TakenLock | None:
        """The lock, which the caller closes; None if it is not free.

        Args:
            number: Which lock, below 2**62.
            shared: Whether others may hold it at the same time, shared, too.
            wait_s: How long to wait for it. The wait ends by itself, even if the process that holds
                the lock is stopped.

        Raises:
            OSError: The file cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._file_of(number), flags, 0o600)
        with ExitStack() as stack:
            stack.callback(os.close, file)
            is_sure = _locked(file, number, shared=shared, wait_s=wait_s)
            if is_sure is False:
                return None
            stack.pop_all()
        return TakenLock(file, number, is_sure=is_sure is not None)

    def take_first(self, number: int, wait_s: float) -> tuple[TakenLock | None, bool]:
        """The lock alone if it is surely free, otherwise shared; and whether it is held alone.

        Errors as of `take`; `wait_s` is for the shared one.
        """
        lock = self.take(number)
        if lock is not None and lock.is_sure:
            return lock, True
        if lock is not None:
            lock.close()
        return self.take(number, shared=True, wait_s=wait_s), False

    @contextmanager
    def held(self, number: int, wait_s: float = 0.0) -> Generator[TakenLock | None, None, None]:
        """The lock for as long as the block runs; None if it is not free. Errors as of `take`."""
        lock = self.take(number, wait_s=wait_s)
        try:
            yield lock
        finally:
            if lock is not None:
                lock.close()

    def share(self, file: int, number: int) -> None:
        """Let others share a lock that was taken for one alone."""
        for _ in range(_TRIES):
            if _try_lock(file, number, fcntl.F_RDLCK):
                break

    def is_free(self, number: int) -> bool | None:
        """Whether nobody holds this lock; None if the system does not say."""
        with self.held(number) as lock:
            return False if lock is None else lock.is_sure or None

    def _file_of(self, number: int) -> str:
        if _HAS_BYTES or not number:
            return str(self.path)
        in_file = number if number < _NUM_NAMED else _NUM_NAMED + number % _NUM_FILES
        return f"{self.path}-{in_file}"


def kept_if(lock: TakenLock, holds: Callable[[], bool]) -> TakenLock | None:
    """The lock if a condition holds; otherwise, and after any error, it is closed."""
    with ExitStack() as stack:
        stack.callback(lock.close)
        if not holds():
            return None
        stack.pop_all()
    return lock


def _locked(file: int, number: int, *, shared: bool, wait_s: float) -> bool | None:
    end, pause = perf_counter() + wait_s, _FIRST_PAUSE_S
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    while (is_locked := _try_lock(file, number, kind)) is False:
        if perf_counter() >= end:
            return False
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return is_locked


def _try_lock(file: int, number: int, kind: int) -> bool | None:
    """Whether the lock is now of this kind (or none, `F_UNLCK`); None: the system does not say."""
    try:
        if _HAS_BYTES:
            # struct flock: kind, whence, padding, start, length, pid (0), padding
            wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, number, 1, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
        else:
            fcntl.flock(file, _OF_FILES[kind] | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN, EACCES
        return False
    except OSError:  # the file system has no locks, or who keeps them does not answer
        return None
    return True
