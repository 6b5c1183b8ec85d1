"""python failing_calls.py FOLDER: the k-th system call of a cache fails, for every k and error.

Each time a forked process loads six pieces into a cache for four, of which two are there, and all
that it is given must be right. Afterwards a process without failures must find nothing that is
wrong, and be able to use what is there. It says how many calls failed with each error.
"""

import errno
import fcntl
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

from cached_bytes import (
    FILE,
    bytes_in,
    bytes_of,
    disk_bytes,
    is_kept,
    make_cache,
    make_need,
    piece_number,
)

CALLS = [
    (os, name) for name in ("open", "write", "pwrite", "rename", "unlink", "ftruncate", "mkdir")
]
CALLS += [(fcntl, "flock")]
KINDS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "SIGKILL": 0}
LIMIT = 4
UNTOUCHED, FAILED = 0, 17


def fail_at(count: int, error: int) -> list[int]:
    """Let the call with this number fail; the list gets an entry when it does."""
    calls, failed = [], []

    def failing(call):
        def called(*arguments, **named):
            calls.append(call)
            if len(calls) != count:
                return call(*arguments, **named)
            failed.append(count)
            if not error:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(error, os.strerror(error))

        return called

    for module, name in CALLS:
        setattr(module, name, failing(getattr(module, name)))
    return failed


def use_cache(folder: Path, failed: list[int]) -> int:
    cache = make_cache(folder, make_need(LIMIT), "failing")
    for number in (0, 2, 3, 1, 4, 5):
        with suppress(OSError):
            is_kept(cache, piece_number(number))
    cache.close()
    return FAILED if failed else UNTOUCHED


def status_of_fork(folder: Path, count: int, error: int) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        with suppress(BaseException):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)  # warnings
            status = use_cache(folder, fail_at(count, error))
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check_what_is_left(folder: Path) -> None:
    cache = make_cache(folder, make_need(LIMIT), "afterwards")
    for number in range(8):
        piece = piece_number(number)
        opened = cache.open(piece)
        assert opened is None or bytes_in(opened, *piece[2:]) == bytes_of(piece)
    assert list(folder.glob("pieces/*/*.part")) == []
    assert all(is_kept(cache, piece_number(number)) for number in (7, 0, 6))
    assert disk_bytes(folder) <= LIMIT * FILE
    cache.close()
    assert list(folder.glob("pieces/runs/*")) == []


def main(above: Path) -> None:
    begun = above / "begun"
    cache = make_cache(begun, make_need(LIMIT), "begun")
    assert all(is_kept(cache, piece_number(number)) for number in range(2))
    cache.close()
    for kind, error in KINDS.items():
        count, status = 0, FAILED
        while status != UNTOUCHED:
            count += 1
            folder = above / "cache"
            shutil.copytree(begun, folder)
            status = status_of_fork(folder, count, error)
            expected = (UNTOUCHED, FAILED if error else -signal.SIGKILL)
            assert status in expected, f"call {count}, {kind}: {status}"
            check_what_is_left(folder)
            shutil.rmtree(folder)
        sys.stdout.write(f"{kind} {count - 1}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
