"""The two classifiers: what the hand-written pipeline gets wrong, and ours right, is counted."""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from forked_programs import ForkedPrograms

pytestmark = [pytest.mark.slow, pytest.mark.ddp, pytest.mark.timeout(700)]

FOLDER = Path(__file__).parents[1] / "examples"
LIMIT_S = 300  # ten seconds of work, on a machine that may be full

NUM_TRAIN, NUM_VAL, STEPS, GLOBAL_BATCH = 1500, 297, 23, 64
COUNTS = r"(\d+) once, (\d+) more than once, (\d+) never"


class Told(NamedTuple):
    """What a classifier prints.

    Of each epoch: the steps of each rank, a text about the order, and how many samples of both
    splits all ranks together were given once, more than once, never.
    """

    output: str
    steps: list[str]
    order: list[str]
    train: list[list[int]]
    val: list[list[int]]
    never_trained: int
    never_validated: int


def run_example(name: str, folder: Path, forked_programs: ForkedPrograms) -> Told:
    """Run it on two ranks, which make their batches themselves: a fork of a rank may deadlock."""
    shutil.copytree(FOLDER, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    command = [f"examples/{name}.py", "--num-workers", "0"]
    output, statuses = forked_programs.run(command, folder, ranks=2, timeout_s=LIMIT_S)
    assert statuses == [0, 0], output
    pattern = rf"^epoch (\d): steps of each rank \[(.*)\], (.*); train {COUNTS}; val {COUNTS}$"
    found = re.findall(pattern, output, flags=re.MULTILINE)
    numbers, steps, order, *counts = map(list, zip(*found, strict=True))
    assert numbers == ["0", "1", "2"], output
    rows = [list(map(int, row)) for row in zip(*counts, strict=True)]
    [never] = re.findall(r"in all epochs: train (\d+) never; val (\d+) never", output)
    train, val = [row[:3] for row in rows], [row[3:] for row in rows]
    return Told(output, steps, order, train, val, *map(int, never))


@pytest.fixture(scope="module")
def before(tmp_path_factory, forked_programs):
    """The hand-written pipeline, stopped in the middle of epoch 1 and resumed."""
    return run_example("classifier_before", tmp_path_factory.mktemp("before"), forked_programs)


@pytest.fixture(scope="module")
def after(tmp_path_factory, forked_programs):
    """The same training on this package, stopped and resumed likewise."""
    return run_example("classifier_after", tmp_path_factory.mktemp("after"), forked_programs)


def test_the_package_gives_each_sample_once_also_in_the_epoch_that_is_resumed(after):
    planned = STEPS * GLOBAL_BATCH
    assert "stopped after step 34, in the middle of epoch 1, and resumed" in after.output
    assert after.train == [[planned, 0, NUM_TRAIN - planned]] * 3
    assert after.val == [[NUM_VAL, 0, 0]] * 3
    assert set(after.order) == {"shards in a new order"}
    # 28 samples are dropped in each of three epochs; that they are the same ones is (28 / 1500)^2
    assert (after.never_trained, after.never_validated) == (0, 0)
    assert after.steps == [f"{STEPS}, {STEPS}"] * 3


def test_the_pipeline_leaves_out_and_repeats_samples_and_begins_its_epoch_again(before):
    # 297 // (2 x 32) steps of 64, from the start of each rank's shards: the same in every epoch
    assert before.val == [[256, 0, 41]] * 3
    assert (before.never_validated, before.never_trained > 0) == (41, True)
    # rank 1 has 700 samples, 21 batches, and takes two more; rank 0 has 800 and leaves 64
    for _, repeated, never in (before.train[0], before.train[2]):
        assert repeated >= STEPS * 32 - 700
        assert never >= 800 - STEPS * 32
    assert before.order[1:] == ["shards as in epoch 0"] * 2
    # of each rank 11 batches, then 12 from the same beginning: no sample from behind the 12
    # batches and the 64 samples that its shuffle holds
    reached = 2 * (12 * 32 + 64)
    _, repeated, never = before.train[1]
    assert never >= NUM_TRAIN - reached
    assert repeated >= STEPS * GLOBAL_BATCH - reached
