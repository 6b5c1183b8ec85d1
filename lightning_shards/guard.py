"""The guard of worker processes: it ends them, and what they run, with the trainer.

It begins before any other line runs in a worker that is not forked: multiprocessing unpickles the
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
from operator import getitem
from typing import Any, Self

_WATCH_INTERVAL_S = 1.0

_THREAD = "the guard of a worker"


class GuardedName(str):
    """The name of a process, which begins the guard where it is unpickled.

    Args:
        trainer_pid: whose end is the worker's.
        folder: of sockets; see `end_with`.
    """

    __slots__ = ("_folder", "_trainer_pid")

    def __new__(cls, trainer_pid: int, folder: str | None) -> Self:
        """Give the process its name."""
        name = super().__new__(cls, "lightning_shards worker")
        name._trainer_pid, name._folder = trainer_pid, folder
        return name

    def begin(self) -> None:
        """Begin the guard in a worker that is forked: there nothing is unpickled."""
        end_with(self._trainer_pid, self._folder)

    def __reduce__(self) -> tuple[Any, ...]:
        given = {"name": str(self), "trainer_pid": self._trainer_pid, "folder": self._folder}
        return getitem, (_Begun(given), "name")


class _Begun:
    """What becomes of this file's globals, when it is run with what is given."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given

    def __reduce__(self) -> tuple[Any, ...]:
        return runpy.run_path, (__file__, self._given, _THREAD)


def end_with(trainer_pid: int, folder: str | None) -> None:
    """End this worker, and the programs that it runs, as soon as the trainer process is gone.

    Workers of a fork server outlive a trainer that was killed: their parent is the server. A worker
    leads a process group of its own, as all of a group end at once: one by one, a download that is
    ended could be started again before its worker is. (Ctrl-C then reaches the trainer alone, which
    ends its workers.)

    Args:
        trainer_pid: the trainer.
        folder: of the sockets of the trainer and its workers, which a killed trainer leaves behind.
    """
    if any(thread.name == _THREAD for thread in threading.enumerate()):
        return
    os.setpgid(0, 0)
    threading.Thread(target=_watch, args=(trainer_pid, folder), name=_THREAD, daemon=True).start()


def _watch(trainer_pid: int, folder: str | None) -> None:
    try:
        if hasattr(os, "pidfd_open"):
            ended = select.poll()
            ended.register(os.pidfd_open(trainer_pid))  # readable when the process has ended
            ended.poll()
        else:
            while True:
                os.kill(trainer_pid, 0)
                time.sleep(_WATCH_INTERVAL_S)
    except ProcessLookupError:
        pass  # it ended before this thread began
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # with curl, which may wait for a server that sends nothing


if __name__ == _THREAD:
    end_with(globals()["trainer_pid"], globals()["folder"])
