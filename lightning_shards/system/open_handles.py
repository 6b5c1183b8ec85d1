"""What a process has open that its forks would share or lose."""

import fcntl
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

_FDS = Path("/proc/self/fd")


def open_handles() -> set[tuple[int, ...]]:
    """The threads of Python, and the open files, sockets and pipes that can be read.

    Forks share one offset in a file and one stream of bytes, and have none of the threads. Files
    that are only written to are not listed: a log gives no values. Empty where there is no /proc.
    """
    if not _FDS.is_dir():
        return set()
    handles: set[tuple[int, ...]] = {(thread.ident or 0,) for thread in threading.enumerate()}
    for fd in [int(path.name) for path in _FDS.iterdir()]:
        with suppress(OSError):  # the listing's own is closed again
            status, flags = os.fstat(fd), fcntl.fcntl(fd, fcntl.F_GETFL)
            if _has_position(status.st_mode) and flags & os.O_ACCMODE != os.O_WRONLY:
                handles.add((fd, status.st_dev, status.st_ino))
    return handles


def _has_position(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
