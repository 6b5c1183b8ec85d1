"""One run in a fresh process: its result, the most memory of all its processes, and its end.

The job comes by standard input, and the result goes into a file, so that nothing a peer prints can
spoil it. Memory is read from /proc (Linux).
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).parents[2]
PSS_INTERVAL_S = 1.0
"""To look takes six milliseconds a process: more often, it would slow down what is measured."""
_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        result: what the child wrote; empty if it failed.
        error: why it failed: its last line, or the limit of time.
    """

    result: dict[str, Any]
    error: str = ""


def answer(act: Callable[[Any], dict[str, Any]]) -> None:
    """In the fresh process: do what is asked, and end without waiting for anybody's threads."""
    result = act(pickle.load(sys.stdin.buffer))  # noqa: S301 it is ours
    Path(sys.argv[-1]).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def run_fresh(
    command: Sequence[str], job: object, timeout_s: float, variables: Mapping[str, str]
) -> Outcome:
    """Run a command that calls `answer`, with these variables more, and end whatever it left.

    The result gets `peak_pss_mb`: the largest sum over all its processes, pages that several share
    counted once.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result", Path(folder) / "log"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}  # noqa: TID251
        with log.open("wb") as output:
            child = subprocess.Popen(  # noqa: S603
                [*command, str(result)], cwd=folder, stdin=subprocess.PIPE, stdout=output,
                stderr=output, start_new_session=True, env=environment,
            )  # fmt: skip
        try:
            with suppress(BrokenPipeError), child.stdin:
                pickle.dump(job, child.stdin)
            peak_mb = _watched(child, monotonic() + timeout_s)
        finally:
            for pid in session_members(child.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            code = child.wait()
        if result.exists():
            return Outcome(json.loads(result.read_text()) | {"peak_pss_mb": peak_mb})
        lines = log.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        why = f"not done after {timeout_s:.0f} s" if code == -signal.SIGKILL else f"status {code}"
        return Outcome({}, f"{why}: {last[-_ERROR_CHARACTERS:]}")


def _watched(child: "subprocess.Popen[bytes]", latest: float) -> float:
    """Wait until the child ends or is late; the most memory that its session had."""
    peak_mb = 0.0
    while monotonic() < latest:
        with suppress(subprocess.TimeoutExpired):
            child.wait(PSS_INTERVAL_S)
            break
        peak_mb = max(peak_mb, sum(pss_mb(pid)[0] for pid in session_members(child.pid)))
    return peak_mb


def session_members(session: int) -> list[int]:
    """The processes that a child started, also those whose parent is gone."""
    members: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                members.append(int(stat.parent.name))
    return members


def pss_mb(pid: int | str) -> tuple[float, float]:
    """Memory of a process, a page that several share counted in parts, and the shared memory in it.

    Both are 0 if it is gone.
    """
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {name: int(size) / 1000 for name, size, _ in map(str.split, lines)}
        return sizes["Pss:"], sizes["Pss_Shmem:"]
    return 0.0, 0.0
