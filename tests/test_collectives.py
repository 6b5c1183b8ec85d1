"""Ranks agree or fail together: three real processes, one script, several scenes in turn."""

import json

import pytest

from lightning_shards.collectives import agree
from lightning_shards.errors import MissingFieldError

pytestmark = pytest.mark.ddp

WORLD_SIZE = 3

SCRIPT = """
import json
import os
import threading

import torch.distributed

from lightning_shards.collectives import agree
from lightning_shards.errors import ConfigError, MissingFieldError

class NeedsTwo(ConfigError):
    def __init__(self, what, remedy):
        super().__init__(f"{what}; {remedy}")

def with_a_lock(error):
    error.lock = threading.Lock()
    return error

FACTS = {"seed": 1, "steps": 7}
WELL = (FACTS, None)
SCENES = {  # what each rank brings along
    "equal facts pass": [WELL, WELL, WELL],
    "a failure is raised by all": [WELL, ({}, MissingFieldError("no 'x'")), WELL],
    "a foreign error by its text": [WELL, WELL, ({}, OSError(5, "disk"))],
    "of two its own or the first": [WELL, ({}, ConfigError("1")), ({}, ConfigError("2"))],
    "facts that differ": [WELL, WELL, ({"seed": 1, "steps": 8}, None)],
    "a fact more on rank 1": [WELL, ({**FACTS, "run": 64}, None), WELL],
    "an error of two arguments": [WELL, ({}, NeedsTwo("no disk", "buy one")), WELL],
    "an error with a lock": [WELL, ({}, with_a_lock(ConfigError("no key"))), WELL],
    "equal facts pass after failures": [WELL, WELL, WELL],
}

def main():
    rank, world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=world_size
    )
    outcomes = {}
    for name, scene in SCENES.items():
        try:
            agree(*scene[rank])
            outcomes[name] = None
        except Exception as error:
            outcomes[name] = [type(error).__name__, str(error)]
    torch.distributed.destroy_process_group()
    with open(f"{rank}.json", "w") as told:
        json.dump(outcomes, told)

main()
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, forked_programs):
    """For each scene: what each rank raised, as [type, message], or None."""
    folder = tmp_path_factory.mktemp("agreement")
    script = folder / "ranks.py"
    script.write_text(SCRIPT)
    output, statuses = forked_programs.run([script], folder, ranks=WORLD_SIZE, timeout_s=60)
    assert statuses == [0] * WORLD_SIZE, output
    by_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]
    return {scene: [rank[scene] for rank in by_rank] for scene in by_rank[0]}


def by_all(message):
    return [["PlanError", f"the ranks disagree on {message}; {REMEDY}"]] * WORLD_SIZE


def by_rank_1(message, own="ConfigError", others="ConfigError"):
    other = [others, f"rank 1 failed: {message}"]
    return [other, [own, message], other]


REMEDY = "give all ranks the same shards and the same settings"
DISK = ["RankError", "rank 2 failed: OSError: [Errno 5] disk"]
RAISED = {
    "equal facts pass": [None] * WORLD_SIZE,
    "a failure is raised by all": by_rank_1("no 'x'", *["MissingFieldError"] * 2),
    "a foreign error by its text": [DISK, DISK, ["OSError", "[Errno 5] disk"]],
    "of two its own or the first": [
        ["ConfigError", message] for message in ("rank 1 failed: 1", "1", "2")
    ],
    "facts that differ": by_all("steps: rank 0 has 7, rank 2 has 8"),
    "a fact more on rank 1": by_all("run: rank 0 has None, rank 1 has 64"),
    "an error of two arguments": by_rank_1("no disk; buy one", own="NeedsTwo"),
    "an error with a lock": by_rank_1("no key"),
    "equal facts pass after failures": [None] * WORLD_SIZE,
}


@pytest.mark.parametrize("scene", RAISED)
def test_ranks_agree_or_fail_together(scene, outcomes):
    assert outcomes[scene] == RAISED[scene]


def test_a_single_process_raises_its_own_error():
    with pytest.raises(MissingFieldError, match=r"^no 'x'$"):
        agree({}, MissingFieldError("no 'x'"))


def test_a_single_process_agrees_with_itself():
    agree({"steps": 7}, None)
