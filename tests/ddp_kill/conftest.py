"""Runs programs on ranks, to their end or until a rank is killed."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from forked_programs import Ended, ForkedPrograms
from waiting import is_alive, wait_for

PROGRAM = Path(__file__).with_name("run_fit.py")
WITHIN_S = 240.0  # four ranks on two busy cores import torch and Lightning
GONE_WITHIN_S = 30.0  # Lightning looks after its ranks every five seconds


def _command(job: dict[str, Any]) -> list[Path]:
    path = Path(job["folder"]) / "job.json"
    path.write_text(json.dumps(job))
    return [PROGRAM, path]


class Programs:
    """Starts `run_fit.py`, with a JSON file as its argument."""

    def __init__(self, forked: ForkedPrograms) -> None:
        self._forked = forked

    def run(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Run to the end on forked ranks; what each rank told."""
        output, statuses = self.run_until_exit(job)
        paths = [Path(job["folder"]) / f"end-{rank}.json" for rank in range(job["ranks"])]
        if any(statuses) or not all(path.exists() for path in paths):
            pytest.fail(f"ended with {statuses}:\n{output[-4000:]}", pytrace=False)
        return [json.loads(path.read_text()) for path in paths]

    def run_until_exit(self, job: dict[str, Any]) -> Ended:
        """Run forked ranks until they, and all that hold their output, have ended."""
        command, folder = _command(job), Path(job["folder"])
        return self._forked.run(command, folder, ranks=job["ranks"], timeout_s=WITHIN_S)

    def run_until_killed(
        self, job: dict[str, Any], *, launched: bool = False
    ) -> tuple[int, list[str]]:
        """Kill the rank that blocks; how many processes there were, and those that outlived it.

        All ranks but the first are started by Lightning if `launched`, which ends them all when one
        has ended; else they are forked, and end by themselves when they miss one of them.
        """
        blocked = Path(job["folder"]) / "blocked.json"
        blocked.unlink(missing_ok=True)
        command, folder = _command(job), Path(job["folder"])
        ranks = 1 if launched else job["ranks"]
        with self._forked.started(command, folder, ranks=ranks) as running:
            mains = [psutil.Process(pid) for pid in running.pids]
            wait_for(lambda: blocked.exists() or not all(map(is_alive, mains)), WITHIN_S)
            if not blocked.exists():
                pytest.fail(f"no rank of {running.pids} blocked", pytrace=False)
            there = [each for main in mains for each in (main, *main.children(recursive=True))]
            psutil.Process(json.loads(blocked.read_text())["pid"]).kill()
            wait_for(lambda: not any(map(is_alive, there)), GONE_WITHIN_S)
            left = [str(each) for each in there if is_alive(each)]
        return len(there), left

    def newest(self, folder: Path) -> tuple[Path, dict[str, Any]]:
        """The newest checkpoint of the fits in a folder, and its ledger."""
        path = max((folder / "saved").glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
        return path, torch.load(path, weights_only=True)["ledger"]


@pytest.fixture(scope="session")
def programs(forked_programs):
    """Runs the program of this folder."""
    return Programs(forked_programs)
