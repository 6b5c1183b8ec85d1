"""What killed and resumed fits guarantee, in the names of its tests: they saw each sample once.

A chain is one training, cut by kills. Each fit of it is a program on ranks, resumed from the newest
checkpoint there is. Ranks are forked; in one chain Lightning starts all but the first. The model's
ledger is saved with its weights, so what is checked is what the final weights were trained on.
"""

import itertools
import random
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lightning_shards import SampleOrder, plan_epoch

pytestmark = [pytest.mark.ddp, pytest.mark.slow, pytest.mark.timeout(1000)]

TRAIN = (11, 30, 0, 7)
VAL = (7, 0, 6)
SAMPLES, EPOCHS = sum(TRAIN), 3


class Stop(NamedTuple):
    """Where a fit ends: in which call of a hook; None as the rank: all ranks raise an error."""

    hook: str
    call: int
    rank: int | None


@dataclass(frozen=True)
class Fit:
    """One program of a chain."""

    ranks: int
    batch_size: int
    num_workers: int = 0
    stop: Stop | None = None


@dataclass(frozen=True)
class Chain:
    """Fits of one training; all but the last are stopped."""

    name: str
    fits: tuple[Fit, ...]
    resumed_after: tuple[int, ...]  # optimiser steps in the checkpoint that each stop leaves
    saving: dict[str, Any]
    trainer: dict[str, Any] = field(default_factory=lambda: {"max_epochs": EPOCHS})
    schedule: bool = False
    saves_in_validation: bool = False
    launched: bool = False  # whether Lightning starts the ranks after the first that are killed


@dataclass
class Outcome:
    """What a chain left behind."""

    chain: Chain
    told: list[dict[str, Any]] = field(default_factory=list)  # by each rank of the last fit
    ledgers: list[Any] = field(default_factory=list)  # of the checkpoints resumed from
    killed: list[tuple[int, int, list[str]]] = field(default_factory=list)


EVERY_3 = {"every_n_train_steps": 3, "save_top_k": -1}
EVERY_4_AND_LAST = {"every_n_train_steps": 4, "save_last": True}
EPOCH_END = {"every_n_epochs": 1, "save_top_k": -1, "save_on_train_epoch_end": True}
ON_EXCEPTION = EPOCH_END | {"save_on_exception": True}
MAX_STEPS = {"max_steps": 30}

FIVE = [
    Chain(
        "a rank within a step, then the main process in the validation after the last batch",
        (
            Fit(2, 2, 1, Stop("training_step", 7, rank=1)),  # 24 of 48 samples are in a checkpoint
            Fit(1, 5, 1, Stop("validation_step", 1, rank=0)),  # 24 samples are no multiple of 5
            Fit(4, 2),
        ),
        (6, 10),
        {"every_n_train_steps": 2, "save_top_k": -1},
        launched=True,
    ),
    Chain(
        "max_steps and a schedule over the steps, the main process, then a rank",
        (
            Fit(2, 2, 1, Stop("training_step", 13, rank=0)),
            Fit(4, 1, 0, Stop("training_step", 5, rank=3)),
            Fit(1, 4, 2),
        ),
        (12, 16),
        EVERY_4_AND_LAST,
        MAX_STEPS,
        schedule=True,
    ),
    Chain(
        "three times within one epoch, two batches to a step",
        (
            Fit(2, 2, 0, Stop("training_step", 3, rank=1)),
            Fit(1, 4, 0, Stop("training_step", 3, rank=0)),
            Fit(2, 1, 0, Stop("training_step", 7, rank=0)),
            Fit(4, 1),
        ),
        (1, 2, 5),
        {"every_n_train_steps": 1, "save_top_k": -1},
        {"max_epochs": 2, "accumulate_grad_batches": 2},
    ),
    Chain(
        "on an exception within a window of three batches, with a schedule",
        (Fit(2, 2, 0, Stop("training_step", 7, rank=None)), Fit(4, 1)),
        (2,),
        ON_EXCEPTION,
        {"max_epochs": 2, "accumulate_grad_batches": 3},
        schedule=True,
    ),
    Chain(
        "saved in a validation, and killed there",
        (Fit(2, 2, 0, Stop("validation_step", 3, rank=1)), Fit(1, 8, 1)),
        (12,),
        EVERY_3,
        saves_in_validation=True,
    ),
]


LAST_BATCH = {"save_top_k": -1}  # and each 12 batches, which are an epoch
# per kind: the hook and its call at which the first fit ends, and batches in its last checkpoint
KINDS: dict[str, tuple[dict[str, Any], str, int, int]] = {
    "within an epoch": (EVERY_3, "training_step", 7, 6),
    "after the last batch": (LAST_BATCH, "training_step", 13, 12),
    "in the validation": (LAST_BATCH, "validation_step", 1, 12),
    "saved in the validation": (EPOCH_END, "validation_step", 2, 12),
    "at the end of an epoch": (EPOCH_END, "training_step", 15, 12),
    "on an exception": (ON_EXCEPTION, "training_step", 17, 17),
}
FIRST = (Fit(2, 2, 1), Fit(4, 1), Fit(2, 2))
SAME_GLOBAL_BATCH = (Fit(1, 4, 1), Fit(4, 1), Fit(2, 2))
ANOTHER_GLOBAL_BATCH = (Fit(1, 5, 1), Fit(4, 2), Fit(2, 5), Fit(1, 7))


def draw_chain(kind: str, limit: str, schedule: bool, accumulate: int) -> Chain:
    """One chain of the matrix; its name decides the fits and the victim."""
    name = f"{kind}, {limit}, accumulate {accumulate}{', a schedule' if schedule else ''}"
    draws = random.Random(name)
    saving, hook, call, batches = KINDS[kind]
    if saving is LAST_BATCH:
        saving = saving | {"every_n_train_steps": 12 // accumulate}
    first = draws.choice(FIRST)
    victim = None if saving is ON_EXCEPTION else draws.choice((0, first.ranks - 1))
    then = draws.choice(SAME_GLOBAL_BATCH if schedule else ANOTHER_GLOBAL_BATCH)
    fits = (replace(first, stop=Stop(hook, call, victim)), then)
    steps = {"max_epochs": 2} if limit == "max_epochs" else {"max_steps": 20 // accumulate}
    options = steps | {"accumulate_grad_batches": accumulate}
    resumed_after = (batches // accumulate,)
    in_validation = kind.startswith("saved in")
    return Chain(name, fits, resumed_after, saving, options, schedule, in_validation)


DIMENSIONS = itertools.product(KINDS, ("max_epochs", "max_steps"), (False, True), (1, 2))
MATRIX = list(itertools.starmap(draw_chain, DIMENSIONS))
CHAINS = [*FIVE, *[pytest.param(chain, marks=pytest.mark.matrix) for chain in MATRIX]]


OF_JOB = ("trainer", "saving", "schedule", "saves_in_validation")


def run_chain(chain: Chain, folder: Path, programs: Any) -> Outcome:
    outcome, checkpoint = Outcome(chain), None
    for number, fit in enumerate(chain.fits):
        job = {
            **asdict(fit),
            **{name: getattr(chain, name) for name in OF_JOB},
            "stop": fit.stop and fit.stop._asdict(),
            "folder": str(folder),
            "train": {"urls": f"{folder}/train-*.tar"},
            "val": f"{folder}/val-*.tar",
            "checkpoint": checkpoint and str(checkpoint),
        }
        if fit.stop is None:
            outcome.told = programs.run(job)
            return outcome
        if fit.stop.rank is None:
            output, statuses = programs.run_until_exit(job)
            assert output.count("StopHereError: training_step") >= fit.ranks, output[-4000:]
            assert 0 not in statuses
        else:
            there, left = programs.run_until_killed(job, launched=chain.launched)
            outcome.killed.append((number, there, left))
        checkpoint, ledger = programs.newest(folder)
        outcome.ledgers.append(ledger)
    raise AssertionError("the last fit of a chain has no stop")


@pytest.fixture(scope="module", params=CHAINS, ids=lambda chain: chain.name)
def outcome(request, tmp_path_factory, pack_into, programs):
    """One chain, run once for all tests."""
    folder = tmp_path_factory.mktemp("chain")
    pack_into(folder, TRAIN, "train")
    pack_into(folder, VAL, "val")
    return run_chain(request.param, folder, programs)


def samples_of(steps: list[Any]) -> dict[int, list[tuple[int, int]]]:
    """What each epoch was trained on, in the order of training."""
    found: dict[int, list[tuple[int, int]]] = {}
    for epoch, ids, _ in steps:
        found.setdefault(epoch, []).extend(map(tuple, ids))
    return found


def planned_samples(outcome: Outcome) -> list[int]:
    """How many samples each epoch was to be trained on, given where the chain was cut."""
    totals: dict[int, int] = {}
    for fit, ledger in zip(outcome.chain.fits, [None, *outcome.ledgers], strict=True):
        trained = samples_of(ledger["steps"]) if ledger else {}
        epoch = max(trained, default=0)
        done = len(trained.get(epoch, []))
        if done == totals.get(epoch):
            epoch, done = epoch + 1, 0
        for number in range(epoch, EPOCHS + 1):
            plan = plan_epoch(SAMPLES, fit.batch_size, fit.ranks, "drop", done)
            totals[number], done = done + plan.served, 0
    return [totals[number] for number in range(len(totals))]


def all_ids(counts: tuple[int, ...]) -> Counter[tuple[int, int]]:
    return Counter((shard, number) for shard, count in enumerate(counts) for number in range(count))


def whole_epochs(outcome: Outcome) -> list[int]:
    """The epochs that are not cut by max_steps."""
    trained = samples_of(outcome.told[0]["steps"])
    planned = planned_samples(outcome)
    return [epoch for epoch in trained if len(trained[epoch]) == planned[epoch]]


def test_each_stop_leaves_the_checkpoint_that_it_should(outcome):
    steps = tuple(len(ledger["steps"]) for ledger in outcome.ledgers)
    assert steps == outcome.chain.resumed_after


def test_the_final_weights_were_trained_on_each_planned_sample_once(outcome):
    trained = samples_of(outcome.told[0]["steps"])
    planned = planned_samples(outcome)
    order = SampleOrder(np.array(TRAIN, np.int64), 0, "shuffled", run=4)
    for epoch, ids in trained.items():
        is_cut = epoch == len(trained) - 1 and "max_steps" in outcome.chain.trainer
        total = len(ids) if is_cut else planned[epoch]
        assert Counter(ids) == Counter(map(tuple, order.at(epoch, 0, total).tolist()))
        assert set(Counter(ids).values()) == {1}
        assert total < SAMPLES or Counter(ids) == all_ids(TRAIN)


def test_a_fit_ends_after_its_epochs_or_its_steps(outcome):
    told, trainer = outcome.told[0], outcome.chain.trainer
    epochs = list(samples_of(told["steps"]))
    assert epochs == list(range(trainer.get("max_epochs", len(epochs))))
    assert (told["global_step"], told["current_epoch"]) == (len(told["steps"]), len(epochs))
    assert told["global_step"] == trainer.get("max_steps", told["global_step"])


def test_all_ranks_tell_the_same(outcome):
    assert len(outcome.told) == outcome.chain.fits[-1].ranks
    assert all(told == outcome.told[0] for told in outcome.told)


def test_each_epoch_is_validated_once_on_each_sample(outcome):
    validations = outcome.told[0]["validations"]
    assert [epoch for epoch, _ in validations] == whole_epochs(outcome)
    assert all(Counter(map(tuple, ids)) == all_ids(VAL) for _, ids in validations)


def test_the_learning_rates_are_those_of_a_fit_that_was_never_stopped(outcome):
    rates = [rate for _, _, rate in outcome.told[0]["steps"]]
    if not outcome.chain.schedule:
        assert set(rates) == {0.01}
        return
    optimizer = torch.optim.SGD([torch.zeros(1)], 0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, total_steps=len(rates), cycle_momentum=False
    )
    expected = [optimizer.param_groups[0]["lr"]]
    for _ in rates[1:]:
        optimizer.step()
        schedule.step()
        expected.append(optimizer.param_groups[0]["lr"])
    assert rates == expected


def test_no_process_outlives_a_kill(outcome):
    for number, there, left in outcome.killed:
        fit = outcome.chain.fits[number]
        assert there >= fit.ranks * (1 + fit.num_workers)
        assert left == []
