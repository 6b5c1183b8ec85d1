"""Programs that begin with Lightning imported: forks of a process that imported it once.

python tests/programs/forked_programs.py OWNER LISTENER: such a process. All workers of pytest-xdist
ask the same two of them for programs, at a socket whose descriptor is LISTENER; they end with the
process that holds the other end of the socket OWNER. It runs no thread, so what it forks is what
`python SCRIPT ARGUMENTS` would be after its imports: in a session of its own, with an environment,
folder, output and draws of its own.

Tests of imports, launchers and start methods start real interpreters instead.
"""

import gc
import importlib
import json
import multiprocessing.process
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

# Nothing that imports our fork server: its end is registered for the process that imports it.
IMPORTED = (
    "lightning.pytorch.callbacks", "lightning.pytorch.loggers", "lightning_shards.build.sources",
    "lightning_shards.measure.report", "omegaconf", "psutil", "torchmetrics",
)  # fmt: skip
LONGEST = 1 << 17  # bytes of a request; most of them are the environment
SERVERS = ("first", "others")  # what forks rank 0, and what forks all other ranks


class Ended(NamedTuple):
    """What all ranks of a program said, and their exit statuses; negative ones are signals."""

    output: str
    statuses: list[int]


class Running(NamedTuple):
    """Ranks that run: where their output can be read, their pids, and later how they ended."""

    output: int
    pids: list[int]
    statuses: list[int]


class ForkedPrograms:
    """Runs programs to their end, on ranks as Lightning would start them.

    Rank 0 is forked from one process and all others from a second one, so that ranks differ, as
    interpreters do, in how strings are hashed.
    """

    def __init__(self, folder: Path) -> None:
        """Connect to nothing yet; `folder` is that of `ForkingServers`."""
        self._folder = folder
        self._servers: list[_Connection] = []

    def run(
        self,
        command: Sequence[Any],
        folder: Path,
        *,
        ranks: int = 1,
        timeout_s: float = 240.0,
        environment: dict[str, str] | None = None,
    ) -> Ended:
        """Run `[SCRIPT, *ARGUMENTS]` in a folder until all that hold its output have ended."""
        with self.started(command, folder, ranks=ranks, environment=environment) as running:
            said = read_to_end(running.output, timeout_s)
        return Ended(said, running.statuses)

    @contextmanager
    def started(
        self,
        command: Sequence[Any],
        folder: Path,
        *,
        ranks: int = 1,
        environment: dict[str, str] | None = None,
    ) -> Iterator["Running"]:
        """`[SCRIPT, *ARGUMENTS]`, running in a folder; what is left of it is killed at the end."""
        for number in range(len(self._servers), min(ranks, 2)):
            self._servers.append(_Connection(self._folder / SERVERS[number]))
        shared = {"command": list(map(str, command)), "folder": str(folder)}
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
        port = free_port()
        reading, writing = os.pipe()
        started: list[tuple[_Connection, int]] = []
        with os.fdopen(reading, "rb") as output, os.fdopen(writing, "wb") as end:
            running = Running(output.fileno(), [], [])
            try:
                for rank in range(ranks):
                    own = variables | (as_rank(rank, ranks, port) if ranks > 1 else {})
                    server = self._servers[min(rank, 1)]
                    pid = server.ask({**shared, "environment": own}, [end.fileno()])
                    started.append((server, pid))
                    running.pids.append(pid)
                end.close()
                yield running
            finally:
                for _, pid in started:
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                running.statuses.extend(server.ask({"ended": pid}) for server, pid in started)

    def close(self) -> str:
        """Ask for nothing more; what those that fork said themselves, which is to be nothing."""
        return "".join(server.close() for server in self._servers)


class ForkingServers:
    """The two processes that fork themselves, which import Lightning when they are first asked.

    Attributes:
        folder: Where their sockets are; nobody else may enter it.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="forked-"))
        self._started = [_start_server(self.folder / name) for name in SERVERS]

    def close(self) -> str:
        """End them; what they said themselves, which is to be nothing."""
        for owner, process in self._started:
            owner.close()
            process.wait()
        said = "".join(_said(self.folder / name) for name in SERVERS)
        shutil.rmtree(self.folder)
        return said


def _start_server(path: Path) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    owner, its_end = socket.socketpair()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its_end, listener, path.with_suffix(".txt").open("wb") as output:
        listener.bind(str(path))
        listener.listen()
        descriptors = its_end.fileno(), listener.fileno()
        process = subprocess.Popen(
            [sys.executable, __file__, *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    return owner, process


def _said(path: Path) -> str:
    return path.with_suffix(".txt").read_text()


class _Connection:
    """A way to ask one of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(str(path))

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> int:
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
        answer = self._socket.recv(LONGEST)
        assert answer, f"what is forked has ended: {_said(self._path)}"
        return int(answer)

    def close(self) -> str:
        self._socket.close()
        return _said(self._path)


def as_rank(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What Lightning tells a rank that it starts."""
    numbers = {"LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": ranks, "MASTER_PORT": port}
    return {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def read_to_end(descriptor: int, timeout_s: float) -> str:
    """All that is said at the end of a pipe until those that hold the other end have ended."""
    said, end = b"", time.perf_counter() + timeout_s
    while select.select([descriptor], [], [], max(end - time.perf_counter(), 0))[0]:
        if not (more := os.read(descriptor, LONGEST)):
            return said.decode(errors="replace")
        said += more
    raise TimeoutError(f"no end after {timeout_s} s; said {said.decode(errors='replace')[-3000:]}")


class _Server:
    """What forks; each of its clients waits for the answer before it asks again."""

    def __init__(self, owner: socket.socket, listener: socket.socket) -> None:
        self._owner, self._listener = owner, listener
        self._selector = selectors.DefaultSelector()
        for end in (owner, listener):
            self._selector.register(end, selectors.EVENT_READ)

    def serve(self) -> tuple[dict[str, Any], int] | None:
        """Fork for each request: what was asked for and its output in a fork, None at the end."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._owner:
                    return None
                if key.fileobj is self._listener:
                    client = self._listener.accept()[0]
                    _import_once()
                    self._selector.register(client, selectors.EVENT_READ)
                elif key.data is not None:
                    self._tell_status(key.fd, *key.data)
                elif asked := self._answer(key.fileobj):
                    self._close()
                    return asked

    def _answer(self, client: Any) -> tuple[dict[str, Any], int] | None:
        data, descriptors, *_ = socket.recv_fds(client, LONGEST, 1)
        if not data:
            self._selector.unregister(client)
            client.close()
            return None
        request = json.loads(data)
        if "ended" in request:  # soon: it is asked when all is killed
            data = (client, request["ended"])
            self._selector.register(os.pidfd_open(request["ended"]), selectors.EVENT_READ, data)
        elif (pid := os.fork()) == 0:
            return request, descriptors[0]
        else:
            os.close(descriptors[0])
            client.send(str(pid).encode())
        return None

    def _tell_status(self, descriptor: int, client: socket.socket, pid: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(OSError):  # who asked is gone
            client.send(str(status).encode())

    def _close(self) -> None:
        """Leave to a fork nothing that is open."""
        for key in list(self._selector.get_map().values()):
            os.close(key.fd) if isinstance(key.fileobj, int) else key.fileobj.close()
        self._selector.close()


def _import_once() -> None:
    if IMPORTED[0] not in sys.modules:
        for name in IMPORTED:
            importlib.import_module(name)
        gc.freeze()  # a fork then copies fewer pages


def _become(request: dict[str, Any], output: int) -> None:
    """Run a program as if Python had been started for it."""
    import numpy as np
    import torch
    from lightning_utilities.core.rank_zero import rank_zero_only

    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ |= request["environment"]
    rank_zero_only.rank = int(os.environ.get("LOCAL_RANK", "0"))  # which it takes when imported
    np.random.seed()  # noqa: NPY002 the generators of processes; that of `random` does it itself
    torch.seed()
    multiprocessing.process.ORIGINAL_DIR = request["folder"]
    tempfile.tempdir = None  # which it has looked for in the environment before
    sys.argv = request["command"]
    script = Path(sys.argv[0]).absolute()
    sys.path[0] = str(script.parent)
    program = sys.modules["__main__"] = ModuleType("__main__")
    program.__file__ = str(script)
    exec(compile(script.read_text(), script, "exec"), vars(program))


def main() -> None:
    owner, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    asked = _Server(owner, listener).serve()
    if asked is None:
        os._exit(0)  # nothing is to be kept
    _become(*asked)


if __name__ == "__main__":
    main()
