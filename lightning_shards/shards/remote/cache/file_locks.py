"""Locks on single bytes of one file, which end with the process that holds them.

They are locks of an open file description, so that threads of one process exclude each other, too.
Whoever rests on them saves work and nothing else: a file system may have none, and then each lock
is given to all who ask.
"""

import fcntl
import os
import struct
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

_HAS_BYTES: Final = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
_NUM_FILES: Final = 64  # where only whole files can be locked
_NUM_NAMED: Final = 2  # numbers that share their file with no other
_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02


class FileLocks:
    """Many locks, each a number, in one file.

    Args:
        path: The file, which is made if it is missing. Its contents are not touched.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self, number: int, *, shared: bool = False, wait_s: float = 0.0) -> int | None:
        """The open file with the lock, which ends when that is closed; None if it is not free.

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
        return kept_if(file, lambda: _locked(file, number, shared=shared, wait_s=wait_s))

    @contextmanager
    def held(self, number: int, wait_s: float = 0.0) -> Generator[int | None, None, None]:
        """The lock for as long as the block runs; None if it is not free. Errors as of `take`."""
        file = self.take(number, wait_s=wait_s)
        try:
            yield file
        finally:
            if file is not None:
                os.close(file)

    def share(self, file: int, number: int) -> None:
        """Let others share a lock that was taken for one alone."""
        _try_lock(file, number, shared=True)

    def is_free(self, number: int) -> bool:
        """Whether nobody holds this lock."""
        with self.held(number) as file:
            return file is not None

    def _file_of(self, number: int) -> str:
        if _HAS_BYTES or not number:
            return str(self.path)
        in_file = number if number < _NUM_NAMED else _NUM_NAMED + number % _NUM_FILES
        return f"{self.path}-{in_file}"


def kept_if(file: int, holds: Callable[[], bool]) -> int | None:
    """The open file if a condition holds; otherwise, and after any error, it is closed."""
    with ExitStack() as stack:
        stack.callback(os.close, file)
        if not holds():
            return None
        stack.pop_all()
    return file


def _locked(file: int, number: int, *, shared: bool, wait_s: float) -> bool:
    end, pause = perf_counter() + wait_s, _FIRST_PAUSE_S
    while not _try_lock(file, number, shared=shared):
        if perf_counter() >= end:
            return False
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return True


def _try_lock(file: int, number: int, *, shared: bool) -> bool:
    try:
        if _HAS_BYTES:
            kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
            # struct flock: kind, whence, padding, start, length, pid (0), padding
            wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, number, 1, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
        else:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN, EACCES
        return False
    except OSError:
        return True  # no locks on this file system
    return True
