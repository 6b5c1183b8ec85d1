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


class Count(NamedTuple):
    """How many samples of a split all ranks together were given once, more than once, never."""

    once: int
    repeated: int
    never: int


class Epoch(NamedTuple):
    """What a classifier prints of an epoch."""

    steps: list[int]
    order: str
    train: Count
    val: Count


class Told(NamedTuple):
    """What a classifier prints."""

    output: str
    epochs: list[Epoch]
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
    assert [number for number, *_ in found] == ["0", "1", "2"], output
    epochs = [
        Epoch([int(each) for each in steps.split(", ")], order,
              Count(*map(int, counts[:3])), Count(*map(int, counts[3:])))
        for _, steps, order, *counts in found
    ]  # fmt: skip
    [never] = re.findall(r"in all epochs: train (\d+) never; val (\d+) never", output)
    return Told(output, epochs, *map(int, never))


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
    assert [epoch.train for epoch in after.epochs] == [(planned, 0, NUM_TRAIN - planned)] * 3
    assert [epoch.val for epoch in after.epochs] == [(NUM_VAL, 0, 0)] * 3
    assert {epoch.order for epoch in after.epochs} == {"shards in a new order"}
    # 28 samples are dropped in each of three epochs; that they are the same ones is (28 / 1500)^2
    assert (after.never_trained, after.never_validated) == (0, 0)
    assert [epoch.steps for epoch in after.epochs] == [[STEPS] * 2] * 3


def test_the_pipeline_leaves_out_and_repeats_samples_and_begins_its_epoch_again(before):
    # 297 // (2 x 32) steps of 64, from the start of each rank's shards: the same in every epoch
    assert [epoch.val for epoch in before.epochs] == [(256, 0, 41)] * 3
    assert (before.never_validated, before.never_trained > 0) == (41, True)
    # rank 1 has 700 samples, 21 batches, and takes two more; rank 0 has 800 and leaves 64
    for epoch in (before.epochs[0], before.epochs[2]):
        assert epoch.train.repeated >= STEPS * 32 - 700
        assert epoch.train.never >= 800 - STEPS * 32
    assert [epoch.order for epoch in before.epochs[1:]] == ["shards as in epoch 0"] * 2
    # of each rank 11 batches, then 12 from the same beginning: no sample from behind the 12
    # batches and the 64 samples that its shuffle holds
    reached = 2 * (12 * 32 + 64)
    assert before.epochs[1].train.never >= NUM_TRAIN - reached
    assert before.epochs[1].train.repeated >= STEPS * GLOBAL_BATCH - reached
