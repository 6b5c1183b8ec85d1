"""The guard of processes that we start: it ends them, and their programs, with their owner.

In a process that is not forked it begins before any other code runs, because multiprocessing
unpickles the name of a process before it imports the main script. The import path is not set yet at
that time, so this file is run by its path and imports nothing but the standard library.
"""

import os
import runpy
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from operator import getitem
from typing import Any, NoReturn, Self

_WATCH_INTERVAL_S = 1.0

_THREAD = "the guard of a worker"

_FOR_THE_OWNER = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
"""Signals that launchers send to all processes of a job, and that end those without a handler."""


class GuardedName(str):
    """The name of a process of this one, which begins the guard when it is unpickled.

    The process has this one's environment; a fork server has that of its own start.

    Args:
        imports_main: Whether a process that is not forked imports the main script.
    """

    __slots__ = ("_given",)

    def __new__(cls, *, imports_main: bool) -> Self:
        """Make the name of the process."""
        name = super().__new__(cls, "lightning_shards worker")
        name._given = {"name": str(name), "owner_pid": os.getpid(), "imports_main": imports_main}
        return name

    def __reduce__(self) -> tuple[Any, ...]:
        return getitem, (_Begun({**self._given, "environment": dict(os.environ)}), "name")


class _Begun:
    """The globals of this file after it was run with the given ones."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given

    def __reduce__(self) -> tuple[Any, ...]:
        return runpy.run_path, (__file__, self._given, _THREAD)


def end_with(owner_pid: int) -> None:
    """End this process, and the programs that it runs, as soon as its owner is gone.

    The workers of a fork server would outlive a trainer that is killed, because their parent is the
    server. A guarded process leads a process group of its own, since all processes of a group end
    at once; one by one, a process could restart its download before it is ended itself. (Ctrl-C
    then reaches only the owner, which ends its processes.)

    Args:
        owner_pid: The process that started this one.
    """
    leave_signals_to_owner()
    if any(thread.name == _THREAD for thread in threading.enumerate()):
        return
    os.setpgid(0, 0)
    threading.Thread(target=_watch, args=(owner_pid,), name=_THREAD, daemon=True).start()


def leave_signals_to_owner() -> None:
    """Let no signal that the owner handles end this process, nor run a handler of the owner in it.

    A fork inherits handlers, and others get those that the main script sets when it is imported.
    """
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        is_python = callable(handler) and handler is not signal.default_int_handler
        if number in _FOR_THE_OWNER and handler is not None:  # None: one of C code, faulthandler's
            signal.signal(number, signal.SIG_IGN)
        elif is_python and number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif is_python:
            signal.signal(number, signal.SIG_DFL)


def _watch(owner_pid: int) -> None:
    try:
        ended = select.poll()
        ended.register(os.pidfd_open(owner_pid))  # readable when the process has ended
        ended.poll()
    except (AttributeError, OSError):  # the system lacks pidfds, or the owner has ended already
        with suppress(ProcessLookupError):
            while True:
                os.kill(owner_pid, 0)
                time.sleep(_WATCH_INTERVAL_S)
    os.killpg(0, signal.SIGKILL)  # the programs of pipes too


def wait_for_guard() -> NoReturn:
    """Wait for the end by the guard, which ends the programs of this process, too."""
    while True:
        signal.pause()


def kill(pid: int) -> None:
    """Kill a guarded process that has not been joined yet, and the programs that it runs."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):  # it has no group of its own yet
        os.killpg(pid, signal.SIGKILL)


if __name__ == _THREAD:
    end_with(globals()["owner_pid"])
    os.environ.clear()
    os.environ.update(globals()["environment"])
    if not globals()["imports_main"]:  # in this process alone; multiprocessing asks for it later
        for of_main in ("_fixup_main_from_name", "_fixup_main_from_path"):
            setattr(sys.modules["multiprocessing.spawn"], of_main, bool)  # which does nothing
