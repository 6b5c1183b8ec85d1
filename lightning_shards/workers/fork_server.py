"""Worker processes that a fork server of the standard library starts.

It differs in three things. It is ours alone, so other code may use its own. It imports what workers
need before it forks the first of them. And a worker imports the main script only if something of it
travels: that script may import Lightning, which takes seconds and 150 MB.

All private names of the standard library that this needs are used here and in `fork_serving`. Tests
run with Python 3.11, 3.12 and 3.13.
"""

import io
import multiprocessing.context as contexts
import os
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import (
    active_children,
    current_process,
    forkserver,
    parent_process,
    popen_forkserver,
    reduction,
    spawn,
    util,
)
from multiprocessing.connection import wait
from typing import Any, cast

from lightning_shards.system.guard import kill

_context: Any = contexts
_std: Any = forkserver
_util: Any = util


class ForkServer(forkserver.ForkServer):
    """The process from which worker processes are forked. A fork of its owner has none."""

    _forkserver_pid: int | None
    _forkserver_alive_fd: int | None
    _preload_modules: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload(["lightning_shards.workers.fork_serving"])
        self._has_folder = False

    @property
    def pid(self) -> int | None:
        """Its process; None if it was not started."""
        return self._forkserver_pid

    def start(self, modules: Iterable[str]) -> None:
        """Start the server, unless it runs, and let it import these modules first.

        This does not wait. Workers import for themselves what a server in use has not.
        """
        missing = [name for name in modules if name not in self._preload_modules]
        if missing:
            self.end_unused()
        if self.pid is None:
            self.set_forkserver_preload([*self._preload_modules, *missing])
        self.ensure_running()

    def ensure_running(self) -> None:
        """Start the server unless it runs. It finds modules where this process does.

        It removes the folder of its socket if this process is killed. So a rank that another
        process of multiprocessing has started takes a folder of its own.
        """
        if parent_process() is not None and not self._has_folder:
            self._has_folder = True
            cast("Any", current_process())._config.pop("tempdir", None)  # noqa: SLF001
        path = os.pathsep.join(spawn.get_preparation_data("")["sys_path"])
        environment = os.environ  # noqa: TID251 workers get back the trainer's
        before = {name: environment.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}
        environment.update(PYTHONPATH=path, PYTHONSAFEPATH="1")
        try:
            super().ensure_running()
        finally:
            for name, value in before.items():
                del environment[name]
                environment.update({} if value is None else {name: value})

    def end_unused(self) -> None:
        """End the server if it has no workers; it starts again when it is needed."""
        if not any(isinstance(child, ForkServerWorker) for child in active_children()):
            self.stop()

    def stop(self) -> None:
        """End the server; workers that still run are not ended."""
        if self.pid is not None:
            kill(self.pid)
            with suppress(ChildProcessError):  # other code of this process has fetched it
                cast("Any", self)._stop()  # noqa: SLF001 its own
            self._forkserver_pid = None

    def forget(self) -> None:
        """Leave the server to the process that this one was forked from."""
        if self._forkserver_alive_fd is not None:
            os.close(self._forkserver_alive_fd)
        self.__init__()


fork_server = ForkServer()
"""The fork server of this process: its loaders share it."""

os.register_at_fork(after_in_child=fork_server.forget)
util.Finalize(None, fork_server.stop, exitpriority=-1)  # after the workers have been joined


class _Popen(popen_forkserver.Popen):
    """A process that is forked from our server."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        preparation = spawn.get_preparation_data(process_obj.name)
        if not process_obj.imports_main:
            preparation.pop("init_main_from_name", None)
            preparation.pop("init_main_from_path", None)
        content = io.BytesIO()
        _context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, content)
            reduction.dump(process_obj, content)
        finally:
            _context.set_spawning_popen(None)
        self.sentinel, data = fork_server.connect_to_new_process(self._fds)
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
            file.write(content.getbuffer())


class ForkServerWorker(contexts.ForkServerProcess):
    """A process that our fork server starts.

    Attributes:
        imports_main: Whether it imports the main script, because something of it travels.
        start_timeout_s: Seconds for the start; 0: any.
    """

    imports_main, start_timeout_s = True, 0.0

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 a name of multiprocessing
        return _Popen(process_obj)


def shared_folder() -> str | None:
    """The folder for temporary files of this process; None if it may belong to others, too.

    It is made before the workers start, so multiprocessing uses it in them, too. The guards of all
    processes remove it, with all that is left in it, if the trainer is killed.
    """
    return util.get_temp_dir() if parent_process() is None else None
