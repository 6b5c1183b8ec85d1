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
    "all is well": [WELL, WELL, WELL],
    "rank 1 fails": [WELL, ({}, MissingFieldError("no 'x'")), WELL],
    "rank 2 fails otherwise": [WELL, WELL, ({}, OSError(5, "disk"))],
    "two fail": [WELL, ({}, ConfigError("bad 1")), ({}, ConfigError("bad 2"))],
    "facts differ": [WELL, WELL, ({"seed": 1, "steps": 8}, None)],
    "a fact more on rank 1": [WELL, ({**FACTS, "run": 64}, None), WELL],
    "an error of two arguments": [WELL, ({}, NeedsTwo("no disk", "buy one")), WELL],
    "an error with a lock": [WELL, ({}, with_a_lock(ConfigError("no key"))), WELL],
    "all is well again": [WELL, WELL, WELL],
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


def test_the_failure_of_one_rank_is_raised_by_all(outcomes):
    own, other = "no 'x'", "rank 1 failed: no 'x'"
    expected = [["MissingFieldError", message] for message in (other, own, other)]
    assert outcomes["rank 1 fails"] == expected


def test_a_foreign_error_is_raised_by_all_by_its_text(outcomes):
    other = ["RankError", "rank 2 failed: OSError: [Errno 5] disk"]
    own = ["OSError", "[Errno 5] disk"]
    assert outcomes["rank 2 fails otherwise"] == [other, other, own]


def test_of_two_failures_a_rank_raises_its_own_or_the_first(outcomes):
    expected = ["rank 1 failed: bad 1", "bad 1", "bad 2"]
    assert outcomes["two fail"] == [["ConfigError", message] for message in expected]


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        ("facts differ", "steps: rank 0 has 7, rank 2 has 8"),
        ("a fact more on rank 1", "run: rank 0 has None, rank 1 has 64"),
    ],
)
def test_facts_that_differ_are_one_error_on_all_ranks(outcomes, scene, said):
    remedy = "give all ranks the same shards and the same settings"
    error = ["PlanError", f"the ranks disagree on {said}; {remedy}"]
    assert outcomes[scene] == [error] * WORLD_SIZE


@pytest.mark.parametrize(
    ("scene", "own", "message"),
    [
        ("an error of two arguments", "NeedsTwo", "no disk; buy one"),
        ("an error with a lock", "ConfigError", "no key"),
    ],
)
def test_an_error_that_cannot_travel_is_raised_by_all_by_its_text(scene, own, message, outcomes):
    other = ["ConfigError", f"rank 1 failed: {message}"]
    assert outcomes[scene] == [other, [own, message], other]


@pytest.mark.parametrize("scene", ["all is well", "all is well again"])
def test_equal_facts_pass_on_all_ranks_also_after_failures(outcomes, scene):
    assert outcomes[scene] == [None] * WORLD_SIZE


def test_a_single_process_raises_its_own_error():
    with pytest.raises(MissingFieldError, match=r"^no 'x'$"):
        agree({}, MissingFieldError("no 'x'"))


def test_a_single_process_agrees_with_itself():
    agree({"steps": 7}, None)
