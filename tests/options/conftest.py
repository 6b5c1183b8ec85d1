"""Shards and programs for the option matrix: the start of ranks is what costs, few are started."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = ["run_*.py"]  # programs, which find `recorder` beside them

HERE = Path(__file__).parent
TRAIN, VAL = (5, 9, 0, 12), (3, 4)  # 26 samples in 6 steps of 2 x 2, 7 in 2 steps


class Records:
    """What the ranks of a program wrote down, and what the program printed."""

    def __init__(self, folder: Path, output: str) -> None:
        self.folder, self.output = folder, output

    def of(self, case: str, rank: int) -> dict[str, Any]:
        """What a rank saw in a case."""
        return json.loads((self.folder / f"{case}-{rank}.json").read_text())

    def steps(self, case: str, rank: int) -> dict[tuple[int, int], list[list[int]]]:
        """The ids that a rank trained on, by epoch and step."""
        return {(epoch, step): ids for epoch, step, ids in self.of(case, rank)["train"]}


@pytest.fixture(scope="session")
def option_shards(tmp_path_factory, pack_into):
    """Makes folders with the same tiny shards for training and validation."""

    def packed(name):
        folder = tmp_path_factory.mktemp(name)
        pack_into(folder, TRAIN, "train")
        pack_into(folder, VAL, "val")
        return folder

    return packed


def fail_with_errors(folder: Path, output: str) -> None:
    """Fail with what the ranks wrote down of their errors."""
    records = [json.loads(path.read_text()) for path in folder.glob("*-[01].json")]
    errors = [record["error"] for record in records if "error" in record]
    pytest.fail("\n".join([*errors, output[-3000:]]), pytrace=False)


@pytest.fixture(scope="session")
def run_program(start_program):
    """Runs a program of this folder to its end; one that hangs is ended, with all it started."""

    def run(folder, program, arguments=(), launcher=()):
        command = [sys.executable, *launcher, str(HERE / program), str(folder), *arguments]
        with start_program(command, folder) as process:
            try:
                output, _ = process.communicate(timeout=280)
            except subprocess.TimeoutExpired as error:
                ended = sorted(path.name for path in folder.glob("*.json"))
                pytest.fail(f"no end; ended {ended}; said {str(error.output)[-3000:]}")
        if process.returncode:
            fail_with_errors(folder, output)
        return Records(folder, output)

    return run


@pytest.fixture(scope="session")
def run_forked(forked_programs):
    """Runs a program of this folder to its end on two ranks that have imported Lightning."""

    def run(folder, program):
        command = [HERE / program, folder]
        output, statuses = forked_programs.run(command, folder, ranks=2, timeout_s=280)
        if any(statuses):
            fail_with_errors(folder, output)
        return Records(folder, output)

    return run
