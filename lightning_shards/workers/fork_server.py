"""Worker processes: a fork server of this package, spawn and fork, on what multiprocessing has.

multiprocessing has a fork server, too, but in each worker it imports the main script (in the server
itself it does not: Python 3.11 should), it needs a socket with a name and a second server that
tracks names, and what it imports is fixed when it starts. This one imports modules whenever it is
asked to. It has no name: it is asked over a pair of sockets.

All private names of the standard library that worker processes need are used here and in
`fork_serving` alone, because there is no public way to give `Process` another way to start. They
are the same in Python 3.11 to 3.13.
"""

import io
import multiprocessing.context as contexts
import os
import pickle
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import (
    forkserver,
    parent_process,
    popen_forkserver,
    popen_spawn_posix,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing.connection import wait
from typing import Any, cast

from lightning_shards.system.guard import kill
from lightning_shards.workers import fork_serving
from lightning_shards.workers.fork_serving import (
    FORK,
    FORK_WITH_TRACKER,
    IMPORT,
    MAIN_KEYS,
    SameEnvironment,
)

_SERVE = """\
import sys; sys.path = {path!r}; from {module} import serve; serve({fd}, {owner}, {folder!r})"""

_PLACE_KEYS = ("sys_path", "sys_argv", "dir", "orig_dir")
"""What modules may look at while they are imported."""

_context: Any = contexts
_std: Any = forkserver
_util: Any = util
_tracker: Any = resource_tracker


class ForkServer:
    """A process from which worker processes are forked, after it has imported what they need.

    It belongs to the process that starts it, and is gone with it. A fork of that process has none.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # finalizers release it in whatever a thread is doing
        self._pid = 0
        self._control: socket.socket | None = None
        self._imported: set[str] = set()
        self._holders = 0

    def hold(self) -> None:
        """Keep the server until `release` is called as often."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """Undo one `hold`."""
        with self._lock:
            self._holders -= 1

    def start(self, modules: Sequence[str] = ()) -> None:
        """Start the server if it does not run, and let it import these modules, in this order.

        This does not wait. What cannot be imported raises in the worker that needs it.
        """
        with self._lock:
            if not self._is_running():
                self._launch()
            new = [name for name in modules if name not in self._imported]
            if not new:
                return
            self._imported.update(new)
            data = spawn.get_preparation_data("").items()
            preparation = {name: value for name, value in data if name in _PLACE_KEYS}
            self._ask(IMPORT, pickle.dumps((SameEnvironment(), preparation, new)))

    def fork(self, fds: Sequence[int]) -> tuple[int, int]:
        """Fork a worker.

        Args:
            fds: File descriptors that it inherits.

        Returns:
            File descriptors: one from which its pid and then its exit status can be read, and one
            for what `spawn` sends to a process.
        """
        with self._lock:
            tracker = _tracker._resource_tracker._fd  # noqa: SLF001 asking for it would start one
            status, its_status = os.pipe()
            its_data, data = os.pipe()
            sent = [its_data, its_status, *([] if tracker is None else [tracker]), *fds]
            try:
                assert self._control is not None  # `start` was called
                request = FORK if tracker is None else FORK_WITH_TRACKER
                socket.send_fds(self._control, [request], sent)
            except BaseException:
                os.close(status)
                os.close(data)
                raise
            finally:
                os.close(its_data)
                os.close(its_status)
            return status, data

    def end_unused(self) -> None:
        """End the server if nothing holds it; it starts again when it is needed."""
        with self._lock:
            if not self._holders:
                self.stop()

    def stop(self) -> None:
        """End the server; workers that still run are not ended."""
        with self._lock:
            pid, self._pid = self._pid, 0
            if self._control is not None:
                self._control.close()
                self._control = None
            if pid:
                kill(pid)
                with suppress(ChildProcessError):  # other code of this process has fetched it
                    os.waitpid(pid, 0)

    def forget(self) -> None:
        """Leave the server to the process that this one was forked from."""
        if self._control is not None:
            self._control.close()
        self._lock, self._pid, self._control, self._holders = threading.RLock(), 0, None, 0

    def _is_running(self) -> bool:
        if not self._pid:
            return False
        with suppress(ChildProcessError):
            return os.waitpid(self._pid, os.WNOHANG)[0] == 0
        return False

    def _launch(self) -> None:
        if self._control is not None:
            self._control.close()
        self._imported = set()
        path = spawn.get_preparation_data("")["sys_path"]
        self._control, its_end = socket.socketpair()
        with its_end:
            code = _SERVE.format(
                path=path,
                module=fork_serving.__name__,
                fd=its_end.fileno(),
                owner=os.getpid(),
                folder=shared_folder(),
            )
            executable = cast("Any", spawn).get_executable()
            flags = _util._args_from_interpreter_flags()  # noqa: SLF001 as spawn does
            command = [executable, *flags, "-c", code]
            self._pid = util.spawnv_passfds(executable, command, [its_end.fileno()])

    def _ask(self, request: bytes, content: bytes) -> None:
        assert self._control is not None  # it was launched
        its_end, end = os.pipe()
        try:
            socket.send_fds(self._control, [request], [its_end])
        except BaseException:
            os.close(end)
            raise
        finally:
            os.close(its_end)
        with open(end, "wb") as file:  # noqa: PTH123 a file descriptor
            file.write(content)


fork_server = ForkServer()
"""The fork server of this process: its loaders share it."""

os.register_at_fork(after_in_child=fork_server.forget)
util.Finalize(None, fork_server.stop, exitpriority=-1)  # after the workers have been joined


class _ForkServerPopen(popen_forkserver.Popen):
    """A process that is forked from our server."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        pickled = _pickled(self, process_obj, environment=SameEnvironment())
        self.sentinel, data = fork_server.fork(self._fds)
        trainer_lives = os.dup(data)  # the worker's `parent_process()` looks at it
        ends = (trainer_lives, self.sentinel)
        self.finalizer = util.Finalize(self, _util.close_fds, ends)
        with open(data, "wb") as file:  # noqa: PTH123 a file descriptor
            if not wait([self.sentinel], process_obj.start_timeout_s or None):
                raise TimeoutError(
                    f"the fork server has started none for {process_obj.start_timeout_s:g} s; it "
                    "imports the modules that they need"
                )
            self.pid = _std.read_signed(self.sentinel)
            file.write(pickled)


class _SpawnPopen(popen_spawn_posix.Popen):
    """A process of a fresh interpreter, which starts no tracker of names."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        tracker = _tracker._resource_tracker._fd  # noqa: SLF001 asking for it would start one
        self._fds += [] if tracker is None else [tracker]
        pickled = _pickled(self, process_obj)
        self.sentinel, its_status = os.pipe()
        its_data, data = os.pipe()
        self.finalizer = util.Finalize(self, _util.close_fds, (self.sentinel, data))
        try:
            command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=its_data)
            fds = [*self._fds, its_data, its_status]
            executable = cast("Any", spawn).get_executable()
            self.pid = util.spawnv_passfds(executable, command, fds)
        finally:
            os.close(its_data)
            os.close(its_status)
        with open(data, "wb", closefd=False) as file:
            file.write(pickled)


def shared_folder() -> str | None:
    """The folder for temporary files of this process; None if it may belong to others, too.

    It is made before the workers start, so multiprocessing uses it in them, too. The guards of all
    processes remove it, with all that is left in it, if the trainer is killed.
    """
    return util.get_temp_dir() if parent_process() is None else None


def _pickled(popen: Any, process_obj: Any, **first: object) -> bytes:
    """What a process gets: how to prepare itself, `first` before all else, and itself."""
    preparation = first | spawn.get_preparation_data(process_obj.name)
    if not process_obj.imports_main:
        preparation = {k: v for k, v in preparation.items() if k not in MAIN_KEYS}
    file = io.BytesIO()
    _context.set_spawning_popen(popen)
    try:
        reduction.dump(preparation, file)
        reduction.dump(process_obj, file)
    finally:
        _context.set_spawning_popen(None)
    return file.getvalue()


class ForkServerWorker(contexts.ForkServerProcess):
    """A process that our fork server starts."""

    imports_main, start_timeout_s = True, 0.0

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 a name of multiprocessing
        return _ForkServerPopen(process_obj)


class SpawnWorker(contexts.SpawnProcess):
    """A process that spawn starts."""

    imports_main, start_timeout_s = True, 0.0

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 a name of multiprocessing
        return _SpawnPopen(process_obj)


class ForkWorker(contexts.ForkProcess):
    """A fork of this process."""

    imports_main, start_timeout_s = False, 0.0
