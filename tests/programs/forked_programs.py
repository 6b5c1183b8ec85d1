"""Programs that begin with Lightning imported: forks of a process that imported it once.

python tests/programs/forked_programs.py SOCKET: such a process, which is asked for programs at the
socket whose descriptor this is, and ends with the process that holds its other end. It runs no
thread, so what it forks is what `python SCRIPT ARGUMENTS` would be after its imports: in a session
of its own, with an environment, folder, output and draws of its own.

Tests of imports, launchers and start methods start real interpreters instead.
"""

import gc
import importlib
import json
import multiprocessing.process
import os
import select
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

    def __init__(self) -> None:
        """Start nothing yet."""
        self._servers: list[_Server] = []

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
        for _ in range(len(self._servers), min(ranks, 2)):
            self._servers.append(_Server())
        shared = {"command": list(map(str, command)), "folder": str(folder)}
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
        port = free_port()
        reading, writing = os.pipe()
        started: list[tuple[_Server, int]] = []
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
                    for kill in (os.kill, os.killpg):  # it may lead no group yet
                        with suppress(ProcessLookupError):
                            kill(pid, signal.SIGKILL)
                running.statuses.extend(server.ask({"ended": pid}) for server, pid in started)

    def close(self) -> str:
        """End what forks them; what it said itself, which is to be nothing."""
        return "".join(server.close() for server in self._servers)


class _Server:
    """What forks programs, seen from the process that asks it."""

    def __init__(self) -> None:
        self._socket, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 it is closed with the process
        with its_end:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(its_end.fileno())],
                pass_fds=[its_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> int:
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
        answer = self._socket.recv(LONGEST)
        assert answer, f"what is forked has ended: {self.close()}"
        return int(answer)

    def close(self) -> str:
        self._socket.close()
        self._process.wait()
        self._said.seek(0)
        with self._said as said:
            return said.read().decode()


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


def _serve(owner: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Fork for each request: what was asked for and its output in a fork, None at the end."""
    while True:
        data, descriptors, *_ = socket.recv_fds(owner, LONGEST, 1)
        if not data:
            return None
        request = json.loads(data)
        if "ended" in request:  # soon: it is asked when all is killed
            status = os.waitpid(request["ended"], 0)[1]
            owner.send(str(os.waitstatus_to_exitcode(status)).encode())
        elif (pid := os.fork()) == 0:
            owner.close()
            return request, descriptors[0]
        else:
            os.close(descriptors[0])
            owner.send(str(pid).encode())


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
    owner = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # a fork then copies fewer pages
    asked = _serve(owner)
    if asked is None:
        os._exit(0)  # nothing is to be kept
    _become(*asked)


if __name__ == "__main__":
    main()
