"""Runs `rank.py` on two real ranks and gives the tests its records."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning  # noqa: F401 all programs of this folder do, and a folder without it is left out
import pytest

RANK_SCRIPT = Path(__file__).with_name("rank.py")


@dataclass(frozen=True)
class Finished:
    """Two ranks that have ended, and what they wrote down."""

    folder: Path
    output: str

    def of(self, case: str, rank: int, *kinds: str) -> list[dict[str, Any]]:
        """The records of one case and rank, of some kinds or all."""
        lines = (self.folder / f"{case}-{rank}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [each for each in records if not kinds or each["kind"] in kinds]

    def end(self, case: str, rank: int) -> dict[str, Any]:
        """The last record: how the case went."""
        return self.of(case, rank)[-1]


@pytest.fixture(scope="session")
def start_ranks(forked_programs):
    """Starts two ranks on some cases; for tests that watch them while they run."""

    def start(folder, cases):
        (folder / "cases.json").write_text(json.dumps(cases))
        return forked_programs.started([RANK_SCRIPT, folder], folder, ranks=2)

    return start


@pytest.fixture(scope="session")
def run_ranks(forked_programs):
    """Runs two ranks on some cases to their end."""

    def run(folder, cases, timeout_s):
        (folder / "cases.json").write_text(json.dumps(cases))
        command = [RANK_SCRIPT, folder]
        output, statuses = forked_programs.run(command, folder, ranks=2, timeout_s=timeout_s)
        if any(statuses):
            records = [path.read_text().splitlines()[-1:] for path in folder.glob("*.jsonl")]
            errors = [line for lines in records for line in lines if '"error"' in line]
            pytest.fail("\n".join([*errors, output[-3000:]]), pytrace=False)
        return Finished(folder, output)

    return run
