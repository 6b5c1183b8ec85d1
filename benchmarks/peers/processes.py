"""One run in a fresh process: its result, the most memory of all its processes, and its end."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import ROOT
from benchmarks.peers.job import Job
from benchmarks.peers.memory import MemoryWatch, session_members

_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        result: what the child wrote; empty if it failed.
        peak_pss_mb: the largest sum over the processes, pages that several share counted once.
        error: why it failed: its last line, or the limit of time.
    """

    result: dict[str, Any]
    peak_pss_mb: float | None
    error: str = ""


def run_job(
    python: str,
    job: Job,
    timeout_s: float,
    module: str = "benchmarks.peers.child",
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the job by this module, with these variables more, and end whatever it left."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result", Path(folder) / "log"
        command = [python, "-m", module, job.to_json(), str(result)]
        with log.open("wb") as output:
            child = subprocess.Popen(  # noqa: S603
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, env={**os.environ, **(variables or {})},  # noqa: TID251
            )  # fmt: skip
        watch = MemoryWatch(child.pid)
        try:
            code = child.wait(timeout_s)
            error = "" if code == 0 else f"status {code}: {_last_line(log)}"
        except subprocess.TimeoutExpired:
            error = f"not done after {timeout_s:.0f} s"
        finally:
            peak = watch.stop()
            _end_session(child.pid)
            child.wait()
        values = json.loads(result.read_text()) if not error else {}
        return Outcome(values, peak, error)


def _end_session(session: int) -> None:
    for pid in session_members(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-_ERROR_CHARACTERS:] if lines else "no output"
