"""The guard of processes that we start: it ends them, and what they run, with the one that did.

It begins before any other line runs in a process that is not forked: multiprocessing unpickles the
name of a process before it imports the main script. As the path of imports is not set then, this
file is run by its path, and imports nothing but the standard library.
"""

import os
import runpy
import select
import shutil
import signal
import threading
import time
from contextlib import suppress
from operator import getitem
from typing import Any, Self

_WATCH_INTERVAL_S = 1.0

_THREAD = "the guard of a worker"


class GuardedName(str):
    """The name of a process, which begins the guard where it is unpickled.

    Args:
        owner_pid: the process whose end is this one's, too.
        folder: of sockets; see `end_with`.
    """

    __slots__ = ("_folder", "_owner_pid")

    def __new__(cls, owner_pid: int, folder: str | None = None) -> Self:
        """Give the process its name."""
        name = super().__new__(cls, "lightning_shards worker")
        name._owner_pid, name._folder = owner_pid, folder
        return name

    def begin(self) -> None:
        """Begin the guard in a process that is forked: there nothing is unpickled."""
        end_with(self._owner_pid, self._folder)

    def __reduce__(self) -> tuple[Any, ...]:
        given = {"name": str(self), "owner_pid": self._owner_pid, "folder": self._folder}
        return getitem, (_Begun(given), "name")


class _Begun:
    """What becomes of this file's globals, when it is run with what is given."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given

    def __reduce__(self) -> tuple[Any, ...]:
        return runpy.run_path, (__file__, self._given, _THREAD)


def end_with(owner_pid: int, folder: str | None) -> None:
    """End this process, and the programs that it runs, as soon as its owner is gone.

    The workers of a fork server outlive a trainer that was killed: their parent is the server. A
    guarded process leads a process group of its own, because all of a group end at once: one by
    one, a download that is ended could be started again before its process is. (Ctrl-C then reaches
    the owner alone, which ends its processes.)

    Args:
        owner_pid: the process that started this one.
        folder: of the sockets of the owner and its processes, which a killed owner leaves behind.
    """
    if any(thread.name == _THREAD for thread in threading.enumerate()):
        return
    os.setpgid(0, 0)
    threading.Thread(target=_watch, args=(owner_pid, folder), name=_THREAD, daemon=True).start()


def _watch(owner_pid: int, folder: str | None) -> None:
    try:
        ended = select.poll()
        ended.register(os.pidfd_open(owner_pid))  # readable when the process has ended
        ended.poll()
    except (AttributeError, OSError):  # the system has none, or the owner has ended already
        with suppress(ProcessLookupError):
            while True:
                os.kill(owner_pid, 0)
                time.sleep(_WATCH_INTERVAL_S)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # with curl, which may wait for a server that sends nothing


def kill(pid: int) -> None:
    """Kill a guarded process that was not waited for yet, and the programs that it runs."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):  # it had no group of its own yet
        os.killpg(pid, signal.SIGKILL)


if __name__ == _THREAD:
    end_with(globals()["owner_pid"], globals()["folder"])
