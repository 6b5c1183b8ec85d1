"""Servers of other makers that tests start: on a free port, ended with the tests by their pid."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

REQUIRED = "REMOTE_SERVERS_REQUIRED"
"""The variable by which CI says that no server may be missing."""

_STARTS = 3  # another program may take the port before the server does
_READY_S = 60.0
_END_S = 10.0


def program(name: str, install: str, folder: Path | None = None) -> str:
    """The path of a server's program.

    Where it is missing, the test is skipped, or fails if CI runs it; both say how to install it.

    Args:
        name: Of the file.
        install: The command that installs it.
        folder: Where it lies. Default: in a folder of PATH or of the system.
    """
    path = shutil.which(name, path=str(folder or f"{os.environ['PATH']}:/usr/sbin"))
    if path is None:
        missing = f"{name} is not installed: {install}"
        if REQUIRED in os.environ:
            pytest.fail(missing)
        pytest.skip(missing)
    return path


@contextmanager
def started(
    command: Callable[[int], Sequence[str]],
    folder: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run a server, and give its port.

    The kernel kills it if this process ends without ending it.

    Args:
        command: The command for a port.
        folder: Where its output goes, as `output.txt`.
        environment: Variables beside those of this process.
    """
    for _ in range(_STARTS):
        port = _free_port()
        with (folder / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command(port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | dict(environment or {}),
            )
        try:
            if _is_ready(process, port):
                yield port
                return
        finally:
            _end(process)
    said = (folder / "output.txt").read_text(errors="replace")[-2000:]
    pytest.fail(f"{command(0)[0]} did not start; it said: {said}")


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def _is_ready(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server accepts connections; it may end instead."""
    latest = time.monotonic() + _READY_S
    while process.poll() is None and time.monotonic() < latest:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return process.poll() is None
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
