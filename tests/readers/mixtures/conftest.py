"""Mixtures of small streams, and what all ranks and workers get of them."""

from dataclasses import replace

import pytest

from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.mixture_schedule import default_round, schedule_mixture, weigh_components
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.shards.index import join_indexes

START = Cursor()
PAIR = {"web": 3, "labels": 1}
COUNTS = {"web": [7, 0, 12], "labels": [2, 3], "synth": [4], "code": [1, 1, 6]}


def slots_of(weights, changes=(), *, rounds=4, round_units=None, unit=1, seed=0):
    whole = weigh_components(dict.fromkeys(weights, 1), weights)
    round_units = round_units or default_round(whole)
    samples = rounds * round_units * unit
    schedule = schedule_mixture(
        whole, changes, round_units=round_units, unit=unit, epoch_samples=samples
    )
    return MixtureSlots(tuple(weights), schedule, seed, samples)


@pytest.fixture(scope="session")
def shards_of(tmp_path_factory, pack_into):
    """The shards of each component; class i % 10 is of sample i of the component."""
    folder = tmp_path_factory.mktemp("mixture")
    return {name: pack_into(folder / name, counts, name) for name, counts in COUNTS.items()}


@pytest.fixture(scope="session")
def make_mixture(make_source, shards_of):
    """Makes a mixture: `make_mixture({"web": 3, "labels": 1}, labels={...settings...})`.

    Settings of `make_source` are those of all components, and `own` those of one, by its name.
    """

    def make(weights, own=None, *, batch_size=2, remainder="drop", slots=None, **settings):
        by_name = {name: settings.pop(name) for name in list(settings) if name in WAYS}
        slots = slots or slots_of(weights, **by_name)
        epochs = EpochSchedule(slots.epoch_samples, batch_size, remainder)
        alone = [
            make_source(shards_of[name], **{"samples": 1} | settings | (own or {}).get(name, {}))
            for name in weights
        ]
        return replace(
            alone[0],
            index=join_indexes([each.index for each in alone]),
            epochs=epochs,
            seed=slots.seed,
            recipes=tuple(each.recipes[0] for each in alone),
            slots=slots,
        )

    return make


WAYS = ("changes", "rounds", "round_units", "unit", "seed")


def rows_in_turn(source, world_size=1, num_workers=1, cursor=START):
    """(component, shard, sample) of all rows from the cursor to its epoch's end, over all ranks.

    They are in the order of the sequence, steps one after the other.
    """
    steps = source.epochs.steps(world_size, cursor.samples)
    ranks = []
    for rank in range(world_size):
        workers = [
            source.batches(Place(rank, world_size, worker, num_workers), cursor)
            for worker in range(num_workers)
        ]
        ranks.append([next(workers[step % num_workers]).batch for step in range(steps)])
        for worker in workers:
            worker.close()
    return [row for step in range(steps) for rank in ranks for row in rows_of(rank[step])]


def rows_of(batch):
    ids, components = batch["__id__"].tolist(), batch["__component__"].tolist()
    return [(number, *each) for number, each in zip(components, ids, strict=True)]
