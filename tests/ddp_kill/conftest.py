"""Runs programs on ranks: forked ones to their end, or Lightning's own until a rank is killed."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked_programs import Ended, ForkedPrograms

HERE = Path(__file__).parent
WITHIN_S = 240.0  # four ranks on two busy cores import torch and Lightning
GONE_WITHIN_S = 30.0  # Lightning looks after its ranks every five seconds


def wait_for(is_reached: Callable[[], bool], within_s: float) -> bool:
    end = time.perf_counter() + within_s
    while not is_reached():
        if time.perf_counter() > end:
            return False
        time.sleep(0.05)
    return True


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _written(job: dict[str, Any]) -> Path:
    path = Path(job["folder"]) / "job.json"
    path.write_text(json.dumps(job))
    return path


class Programs:
    """Starts the programs of this folder, each with one JSON file as its argument."""

    def __init__(self, start_program: Callable[..., Any], forked: ForkedPrograms) -> None:
        self._start_program, self._forked = start_program, forked

    @contextmanager
    def _started(self, name: str, job: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, str(HERE / name), str(_written(job))]
        with self._start_program(command, Path(job["folder"])) as process:
            yield process

    def run(self, name: str, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Run to the end on forked ranks; what each rank told."""
        output, statuses = self.run_until_exit(name, job)
        paths = [Path(job["folder"]) / f"end-{rank}.json" for rank in range(job["ranks"])]
        if any(statuses) or not all(path.exists() for path in paths):
            pytest.fail(f"ended with {statuses}:\n{output[-4000:]}", pytrace=False)
        return [json.loads(path.read_text()) for path in paths]

    def run_until_exit(self, name: str, job: dict[str, Any]) -> Ended:
        """Run forked ranks until they, and all that hold their output, have ended."""
        command, folder = [HERE / name, _written(job)], Path(job["folder"])
        return self._forked.run(command, folder, ranks=job["ranks"], timeout_s=WITHIN_S)

    def run_until_killed(self, name: str, job: dict[str, Any]) -> tuple[int, list[str]]:
        """Kill the rank that blocks; how many processes there were, and those that outlived it."""
        blocked = Path(job["folder"]) / "blocked.json"
        blocked.unlink(missing_ok=True)
        with self._started(name, job) as process:
            is_blocked = wait_for(
                lambda: blocked.exists() or process.poll() is not None, within_s=WITHIN_S
            )
            if not is_blocked or process.poll() is not None:
                process.kill()
                pytest.fail(f"no rank blocked:\n{process.communicate()[0][-4000:]}", pytrace=False)
            main = psutil.Process(process.pid)
            there = [main, *main.children(recursive=True)]
            psutil.Process(json.loads(blocked.read_text())["pid"]).kill()
            wait_for(
                lambda: process.poll() is not None and not any(map(is_alive, there)), GONE_WITHIN_S
            )
            left = [str(each) for each in there if is_alive(each)]
        return len(there), left


@pytest.fixture(scope="session")
def programs(start_program: Callable[..., Any], forked_programs: ForkedPrograms) -> Programs:
    """Runs the programs of this folder."""
    return Programs(start_program, forked_programs)
