"""Options of a Trainer on two real ranks, for both readers."""

import json
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pytest

pytestmark = [pytest.mark.ddp, pytest.mark.slow, pytest.mark.timeout(300)]

RANKS = (0, 1)
READERS = ("indexed", "stream")
STEPS, VAL_STEPS = 6, 2
VAL_IDS = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3]]


@dataclass(frozen=True)
class Option:
    """One fit: how it is asked for, and what must come of it.

    Attributes:
        name: of the case.
        trainer: options of the Trainer.
        more: what `run_matrix.py` is told beside them.
        epochs: batches of each epoch.
        validations: how many there are, without the sanity check.
        val_steps: batches of each.
        updates: steps of the optimiser.
        sanity: batches of the sanity check.
        workers: processes that a rank has at the second step; none means it makes its batches.
    """

    name: str
    trainer: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    epochs: tuple[int, ...] = (STEPS, STEPS)
    validations: int = 2
    val_steps: int = VAL_STEPS
    updates: int = 12
    sanity: int = 2
    workers: int = 0


OPTIONS = [
    Option("defaults"),
    Option("accumulate_grad_batches=4", {"accumulate_grad_batches": 4}, updates=4),
    Option("limit_train_batches=.5", {"limit_train_batches": 0.5}, epochs=(3, 3), updates=6),
    Option("limit_val_batches=.5", {"limit_val_batches": 0.5}, val_steps=1, sanity=1),
    Option("limit_val_batches=0", {"limit_val_batches": 0}, validations=0, sanity=0),
    Option("val_check_interval=.5", {"val_check_interval": 0.5}, validations=4),
    Option(
        "val_check_interval=4 over epochs",
        {"val_check_interval": 4, "check_val_every_n_epoch": None}, validations=3,
    ),
    Option("max_steps=8", {"max_steps": 8, "max_epochs": -1}, {}, (6, 2), 1, updates=8, workers=2),
    Option(
        "reload and a limit",
        {"reload_dataloaders_every_n_epochs": 1, "limit_train_batches": 4, "limit_val_batches": 1},
        epochs=(4, 4), updates=8, val_steps=1, sanity=1, workers=2,
    ),
    Option(
        "overfit_batches, reload",
        {"overfit_batches": 2, "reload_dataloaders_every_n_epochs": 1, "max_epochs": 3},
        epochs=(2, 2, 2), validations=3, updates=6,
    ),
    Option("fast_dev_run=2", {"fast_dev_run": 2}, {}, (2,), 1, updates=2, sanity=0),
    Option("use_distributed_sampler=True", {"use_distributed_sampler": True}),
    Option("early stopping", {"max_epochs": 9}, {"stops_early": True}, workers=2),
    Option("evaluation", more={"evaluates": True}, workers=1),
]  # fmt: skip
BY_NAME = {option.name: option for option in OPTIONS}
FITS = [option.name for option in OPTIONS if not option.more.get("evaluates")]

each_option = pytest.mark.parametrize("name", BY_NAME)
each_fit = pytest.mark.parametrize("name", FITS)
each_reader = pytest.mark.parametrize("reader", READERS)


@pytest.fixture(scope="module")
def ran(option_shards, run_forked):
    """All options under both readers, by one pair of ranks."""
    folder = option_shards("matrix")
    cases = [
        {
            "name": f"{reader} {option.name}",
            "reader": reader,
            "trainer": option.trainer,
            "num_workers": min(option.workers, 1),
            **option.more,
        }
        for reader in READERS
        for option in OPTIONS
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    return run_forked(folder, "run_matrix.py")


@each_reader
@each_fit
def test_every_rank_takes_the_steps_that_the_option_says(ran, name, reader):
    epochs = enumerate(BY_NAME[name].epochs)
    expected = [(epoch, step) for epoch, steps in epochs for step in range(steps)]
    for rank in RANKS:
        assert list(ran.steps(f"{reader} {name}", rank)) == expected
        assert ran.of(f"{reader} {name}", rank)["global_step"] == BY_NAME[name].updates
        assert all(len(ids) == 2 for ids in ran.steps(f"{reader} {name}", rank).values())


@each_reader
@each_fit
def test_validations_run_when_the_option_says_and_see_the_same_samples_each_time(ran, name, reader):
    option = BY_NAME[name]
    for rank in RANKS:
        record = ran.of(f"{reader} {name}", rank)
        whole = ran.of(f"{reader} defaults", rank)["validations"][0]
        assert record["validations"] == [whole[: 2 * option.val_steps]] * option.validations
        assert record["sanity"] == whole[: 2 * option.sanity]


@each_reader
@each_fit
def test_an_option_changes_no_sample_of_a_step(ran, name, reader):
    """An epoch under a limit is a shorter one; `overfit_batches` repeats the first epoch."""
    for rank in RANKS:
        plain = ran.steps(f"{reader} defaults", rank)
        repeats = name.startswith("overfit_batches")
        for (epoch, step), ids in ran.steps(f"{reader} {name}", rank).items():
            assert ids == plain[0 if repeats else epoch, step]


@each_reader
def test_epochs_differ_and_ranks_share_no_sample_of_a_step(ran, reader):
    """Else the test above would say little."""
    first, second = (ran.steps(f"{reader} defaults", rank) for rank in RANKS)
    assert not [place for place in first if first[place] == second[place]]
    for steps in (first, second):
        assert [steps[0, step] for step in range(STEPS)] != [
            steps[1, step] for step in range(STEPS)
        ]


@each_reader
def test_validate_test_and_predict_see_each_sample_once_over_the_ranks(ran, reader):
    records = [ran.of(f"{reader} evaluation", rank) for rank in RANKS]
    assert sorted(chain(*(record["validations"][0] for record in records))) == VAL_IDS
    assert sorted(chain(*(record["tested"] for record in records))) == VAL_IDS
    rows = [
        row
        for batch in chain(*(record["predicted"] for record in records))
        for row in zip(batch["__id__"], batch["__weight__"], batch["label"], strict=True)
    ]
    in_order = sorted((ids, label) for ids, weight, label in rows if weight)
    assert in_order == [(ids, label) for label, ids in enumerate(VAL_IDS)]


@each_reader
@each_option
def test_no_process_is_left_after_a_fit(ran, name, reader):
    """But for the rank that the other one has started."""
    ranks = {ran.of(f"{reader} {name}", rank)["pid"] for rank in RANKS}
    for rank in RANKS:
        record = ran.of(f"{reader} {name}", rank)
        assert set(record["left"]) <= ranks
        assert len({*record["workers"]} - ranks) == BY_NAME[name].workers


def test_every_epoch_of_the_indexed_reader_is_proven_and_nothing_warns(ran):
    """Where the option lets an epoch end. In ranks and workers a warning is an error already."""
    assert "Warning" not in ran.output
    proven = ran.output.count(", as the order says (digest")
    epochs = sum(len(BY_NAME[name].epochs) for name in FITS)
    assert proven >= epochs
