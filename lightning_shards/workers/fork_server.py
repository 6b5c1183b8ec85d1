"""The fork server of the standard library, from which worker processes are forked.

It imports what workers need before it forks the first of them, and ends when nothing uses it. All
private names of the standard library that this needs are used here and in `system.guard`. Tests run
with Python 3.11, 3.12 and 3.13.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import active_children, forkserver, spawn, util
from typing import Any, cast

from lightning_shards.system.guard import kill

# ruff: noqa: SLF001
_std: Any = cast("Any", forkserver)._forkserver


class ForkServer:
    """The process from which worker processes are forked. A fork of its owner has none."""

    @property
    def pid(self) -> int | None:
        """Its process; None if it was not started."""
        return _std._forkserver_pid

    def start(self, modules: Iterable[str]) -> None:
        """Start the server, unless it runs, and let it import these modules first.

        This does not wait. Workers import for themselves what a server in use has not. It finds
        modules where this process does.
        """
        before = [name for name in _std._preload_modules if name != "__main__"]
        wanted = dict.fromkeys(["lightning_shards.workers.fork_serving", *before, *modules])
        if list(wanted) != before:
            self.end_unused()
        if self.pid is None:
            forkserver.set_forkserver_preload(list(wanted))
        path = os.pathsep.join(spawn.get_preparation_data("")["sys_path"])
        environment = os.environ  # noqa: TID251 workers get back the trainer's
        values = {name: environment.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}
        environment.update(PYTHONPATH=path, PYTHONSAFEPATH="1")
        try:
            forkserver.ensure_running()
        finally:
            for name, value in values.items():
                del environment[name]
                environment.update({} if value is None else {name: value})

    def end_unused(self) -> None:
        """End the server if nothing uses it; it starts again when it is needed."""
        started = [cast("Any", child)._popen for child in active_children()]
        if not any(popen.method == "forkserver" for popen in started):
            self.stop()

    def stop(self) -> None:
        """End the server; workers that still run are not ended."""
        if self.pid is not None:
            kill(self.pid)
            with suppress(ChildProcessError):  # other code of this process has fetched it
                _std._stop()
            _std._forkserver_pid = None

    def forget(self) -> None:
        """Leave the server to the process that this one was forked from."""
        if self.pid is not None:
            os.close(_std._forkserver_alive_fd)
            _std.__init__()


fork_server = ForkServer()
"""The fork server of this process: its loaders share it."""

os.register_at_fork(after_in_child=fork_server.forget)
util.Finalize(None, fork_server.stop, exitpriority=-1)  # after the workers have been joined
