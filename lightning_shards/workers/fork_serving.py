"""What the fork server runs: it imports modules when it is asked to, and forks workers.

It takes the place of `multiprocessing.forkserver.main`, which imports only once, before it forks.
It imports installed modules alone: workers would share what an import of the user's has opened,
such as a file of the main script, and its offset.
"""

import atexit
import gc
import os
import pickle
import select
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, spawn, util
from typing import Any, NoReturn, cast

from lightning_shards.system.guard import end_with, leave_signals_to_owner, wait_for_guard

MAX_FDS = 250
"""Linux sends at most 253 files at a time."""

FORK, FORK_WITH_TRACKER, IMPORT = b"f", b"t", b"i"
"""Requests to the fork server. Their content comes through a pipe that is sent along."""

MAIN_KEYS = ("init_main_from_name", "init_main_from_path")
"""What tells a process which main script to import."""

_LOOK_S = 1.0
"""Seconds after which the server looks for workers that have ended, if no signal has come."""

_exits: Any = atexit
_std: Any = forkserver
_spawn: Any = spawn
_tracker: Any = resource_tracker
_util: Any = util


def serve(control_fd: int, owner_pid: int, folder: str | None) -> NoReturn:
    """Fork workers until the owner is gone or kills this process; what the fork server runs.

    Args:
        control_fd: File descriptor of the connection to the owner.
        owner_pid: The process that started the server.
        folder: Of temporary files of the owner, which are removed if it is killed.
    """
    end_with(owner_pid, folder)  # also while a module of the user's is imported
    _util._close_stdin()  # noqa: SLF001 as multiprocessing's own server does
    _Server(socket.socket(fileno=control_fd)).run()
    wait_for_guard()


class SameEnvironment:
    """Where it is unpickled, the environment becomes the one of the process that pickled it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_environment, (dict(os.environ),)


def _set_environment(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _do_nothing(_signal: int, _frame: object) -> None:
    """Handle a signal; with a handler, its number is written to the wakeup pipe."""


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._statuses: dict[int, int] = {}  # pid to the pipe that its exit status is written to
        self._wakeup, wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup, False)
        self._own_fds = [self._wakeup, wakeup]
        signal.set_wakeup_fd(wakeup)
        leave_signals_to_owner()
        signal.signal(signal.SIGCHLD, _do_nothing)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Answer requests until the trainer closes its end of the connection."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            self._own_fds.append(cast("Any", selector).fileno())
            is_open = True
            while is_open:
                for key, _ in selector.select(_LOOK_S):
                    is_open = is_open and (key.fileobj is not self._control or self._answer())
                self._reap()

    def _answer(self) -> bool:
        request, fds, flags, _ = socket.recv_fds(self._control, 1, MAX_FDS)
        if flags & socket.MSG_CTRUNC:  # too many open files: who asked finds its pipes closed
            for fd in fds:
                os.close(fd)
        elif request == IMPORT:
            with open(fds[0], "rb") as file:  # noqa: PTH123 a file descriptor
                _, preparation, names = pickle.load(file)  # noqa: S301 from the trainer
            with suppress(OSError):  # the working directory is gone
                spawn.prepare(preparation)
            _import(names)
        elif request:
            self._fork(fds, has_tracker=request == FORK_WITH_TRACKER)
        return bool(request)

    def _fork(self, fds: list[int], *, has_tracker: bool) -> None:
        data, status, *inherited = fds
        with warnings.catch_warnings():
            # Python 3.12 warns of any other thread; that of the guard does nothing but wait
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._run_worker(data, status, inherited, has_tracker=has_tracker)
        self._statuses[pid] = status
        with suppress(BrokenPipeError):  # the trainer is gone
            _std.write_signed(status, pid)
        for fd in (data, *inherited):
            os.close(fd)

    def _reap(self) -> None:
        """Tell the trainer the exit status of workers that have ended."""
        with suppress(BlockingIOError):
            os.read(self._wakeup, 2**16)
        for pid in list(self._statuses):
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                status = self._statuses.pop(pid)
                with suppress(BrokenPipeError):
                    _std.write_signed(status, os.waitstatus_to_exitcode(code))
                os.close(status)

    def _run_worker(
        self, data: int, status: int, inherited: list[int], *, has_tracker: bool
    ) -> NoReturn:
        """Become a worker, as a process of multiprocessing's own fork server does."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._control.close()
            for fd in (status, *self._own_fds, *self._statuses.values()):
                os.close(fd)
            if has_tracker:
                _tracker._resource_tracker._fd = inherited.pop(0)  # noqa: SLF001
            _std._forkserver._inherited_fds = inherited  # noqa: SLF001
            _exits._clear()  # noqa: SLF001 as Python 3.13 does: these are the server's
            atexit.register(_util._exit_function)  # noqa: SLF001
            if _has_content(data):
                code = _spawn._main(data, os.dup(data))  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 it cannot be raised anywhere
            sys.excepthook(type(error), error, error.__traceback__)
            sys.stderr.flush()
        finally:
            _exits._run_exitfuncs()  # noqa: SLF001
            os._exit(code)


def _has_content(pipe: int) -> bool:
    """Wait for the content of a pipe; False if there is none, because the trainer is gone."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll()[0][1] & select.POLLIN)


def _import(names: Iterable[str]) -> None:
    """Import modules; what fails here is tried again by the worker, whose error is told."""
    for name in names:
        with suppress(Exception, SystemExit):
            import_module(name)
    gc.collect()
    gc.freeze()  # so that a collection in a worker does not copy the pages of all objects
