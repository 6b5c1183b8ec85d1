"""Killed and resumed fits on a mixture: other ranks, other batches, and weights that changed.

Each resume adds a stage that begins behind what was trained. So the final weights must have been
trained on what one mixture says that had all of these stages from the start on.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightning_shards import plan_epoch
from tests.mixed_shards import COUNTS, LABELS, ROUND, WEIGHTS, module_of, pack_component

pytestmark = [pytest.mark.ddp, pytest.mark.slow, pytest.mark.timeout(1000)]

VAL = (7, 0, 6)
EPOCH, EPOCHS = 48, 2
FITS = ((1, 8), (2, 2), (1, 5), (2, 4), (4, 1), (2, 3), (1, 4), (3, 2))
"""Ranks, and samples of the batch of each."""


class Fit(NamedTuple):
    """One program of a chain: it is killed in this training step; None: it goes to its end."""

    ranks: int
    batch_size: int
    killed_in: int | None


def draw_chain(seed: int) -> list[Fit]:
    """Two or three fits, each on ranks of its own."""
    draws = random.Random(f"mixture {seed}")
    chosen = draws.sample(FITS, draws.choice((2, 3)))
    # so that the kills before the last fit come before the end of the run
    calls = [draws.randint(2, EPOCH // (ranks * size) - 1) for ranks, size in chosen]
    return [
        Fit(ranks, size, call if number + 1 < len(chosen) else None)
        for number, ((ranks, size), call) in enumerate(zip(chosen, calls, strict=True))
    ]


def split_of(folder: Path, schedule: list[Any]) -> dict[str, Any]:
    """The settings of the mixture, whose components take their label from other members."""
    fields = {"label": "cls"}, {"label": LABELS["fields"]["label"]}
    mix = {
        name: {
            "urls": f"{folder}/{name}-*.tar",
            "weight": WEIGHTS[name],
            "fields": fields[name == "labels"],
            "decode": {"label": "int"},
        }
        for name in COUNTS
    }
    return {"mix": mix, "round": ROUND, "dataset_size": EPOCH, "schedule": schedule}


def next_stage(trained: int, draws: random.Random) -> dict[str, Any]:
    """Other weights from the next round on, or from a later one."""
    first = -(-trained // ROUND) + draws.randrange(3)
    weights = {name: draws.randrange(4) for name in COUNTS} | {"web": 1}
    return {"samples": first * ROUND, "weights": weights}


def run_chain(seed: int, folder: Path, programs: Any) -> tuple[list[Any], list[Any], list[int]]:
    """What the ranks of the last fit tell, the stages, and how far each epoch was to come."""
    draws, checkpoint, schedule = random.Random(f"stages {seed}"), None, list[Any]()
    totals, trained = [0] * EPOCHS, Counter[int]()
    for fit in draw_chain(seed):
        job: dict[str, Any] = {
            "ranks": fit.ranks,
            "batch_size": fit.batch_size,
            "num_workers": draws.choice((0, 0, 1)),
            "folder": str(folder),
            "train": split_of(folder, schedule),
            "val": f"{folder}/val-*.tar",
            "trainer": {"max_epochs": EPOCHS},
            "saving": {"every_n_train_steps": 1, "save_top_k": -1},
            "checkpoint": checkpoint and str(checkpoint),
        }
        for number in range(max(trained, default=0), EPOCHS):
            done = trained[number]
            plan = plan_epoch(EPOCH, fit.batch_size, fit.ranks, "drop", done)
            totals[number] = done + plan.served
        if fit.killed_in is None:
            return programs.run(job), schedule, totals
        stop = {"hook": "training_step", "call": fit.killed_in, "rank": fit.ranks - 1}
        programs.run_until_killed(job | {"stop": stop})
        checkpoint, ledger = programs.newest(folder)
        trained = Counter(epoch for epoch, ids, _ in ledger["steps"] for _ in ids)
        place = max(trained) * EPOCH + trained[max(trained)]
        schedule = [stage for stage in schedule if stage["samples"] < place]
        schedule += [next_stage(place, draws)]
    raise AssertionError("the last fit of a chain is not killed")


SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(2, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_of_a_killed_chain_were_trained_on_what_the_mixture_says(
    seed, tmp_path, pack_into, programs
):
    for name, counts in COUNTS.items():
        pack_component(tmp_path, name, counts)
    pack_into(tmp_path, VAL, "val")
    told, schedule, totals = run_chain(seed, tmp_path, programs)
    mix = split_of(tmp_path, schedule)
    order = module_of(tmp_path, {}, mix | {"shuffle_run": 4, "shuffle_block": 16_384}, seed=0)
    order = order.source("train").order
    trained: dict[int, list[list[int]]] = {epoch: [] for epoch in range(EPOCHS)}
    for epoch, ids, _ in told[0]["steps"]:
        trained[epoch] += ids
    for epoch, total in enumerate(totals):
        assert trained[epoch] == order.at(epoch, 0, total).tolist()
    assert [epoch for epoch, _ in told[0]["validations"]] == list(range(EPOCHS))
    validated = [(shard, number) for shard, count in enumerate(VAL) for number in range(count)]
    for _, ids in told[0]["validations"]:
        assert sorted(map(tuple, ids)) == validated
    assert all(each == told[0] for each in told)
