"""Two real ranks that train on a mixture: each round its weights, proven, and told to loggers."""

import csv
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.mixed_shards import COUNTS, WEIGHTS, mix_of

pytestmark = [pytest.mark.ddp, pytest.mark.slow]

RANKS = (0, 1)
SHARDS = np.cumsum([0, *map(len, COUNTS.values())])
MIXED = ("no workers", "a worker", "resumed")


@pytest.fixture(scope="module")
def ran(tmp_path_factory, run_ranks):
    """All cases, run by one pair of ranks: epochs of 32 samples, 4 steps of 2 x 4."""
    folder = tmp_path_factory.mktemp("mixtures")
    options = {"sampling": "shuffled", "shuffle_run": 2, "round": 8, "dataset_size": 32}
    options["mix"] = mix_of(folder / "shards", tuple(COUNTS))

    def case(name, num_workers=0, **more):
        splits = {"train": {"urls": None, "options": options}}
        data = {"num_workers": num_workers, "batch_size": 4}
        trainer = {"max_epochs": 3, "log_every_n_steps": 1}
        return {"name": name, "splits": splits, "data": data, "trainer": trainer} | more

    cases = [
        case("no workers", csv="of all", save_every=6),
        case("a worker", 1),
        case("resumed", resume="saved/step=6.ckpt", csv="of the rest"),
        case("tampered", tampered=True, fails=True),
    ]
    return run_ranks(folder, cases, timeout_s=200)


def trained(ran: Any, name: str, *ranks: int) -> dict[tuple[int, int], list[list[int]]]:
    """The ids of each epoch and step, those of these ranks one after the other."""
    ids: dict[tuple[int, int], list[list[int]]] = {}
    for rank in ranks:
        for each in ran.of(name, rank, "train"):
            ids.setdefault((each["epoch"], each["step"]), []).extend(each["ids"])
    return ids


def components_of(ids: list[list[int]]) -> list[int]:
    shards = [shard for shard, _ in ids]
    return (np.searchsorted(SHARDS, shards, side="right") - 1).tolist()


@pytest.mark.parametrize("name", MIXED)
def test_each_step_of_both_ranks_holds_the_weights(ran, name):
    steps = trained(ran, name, *RANKS)
    assert len(steps) == (6 if name == "resumed" else 12)
    for ids in steps.values():
        assert Counter(components_of(ids)) == dict(enumerate(WEIGHTS.values()))


def test_neither_workers_nor_a_resume_change_what_a_rank_is_given(ran):
    for rank in RANKS:
        alone = trained(ran, "no workers", rank)
        assert trained(ran, "a worker", rank) == alone
        assert trained(ran, "resumed", rank) == dict(list(alone.items())[6:])


def test_each_epoch_is_proven_over_both_ranks(ran):
    lines = [line for line in ran.output.splitlines() if "2 ranks" in line and "order" in line]
    told = Counter(line.partition(" (digest")[0] for line in lines)
    whole = "epoch {}: 32 samples in 4 steps of 2 ranks, as the order says"
    rest = "epoch 1: 16 samples in 2 steps of 2 ranks from sample 16 on, as the order says"
    assert told == {whole.format(0): 2, whole.format(1): 2, whole.format(2): 3, rest: 1}


@pytest.mark.parametrize("rank", RANKS)
def test_another_order_on_one_rank_ends_both(ran, rank):
    end = ran.end("tampered", rank)
    assert (end["kind"], end["type"]) == ("error", "DigestError")
    assert "epoch 0: the samples served to 2 ranks are not those of the" in end["message"]


@pytest.mark.parametrize(("folder", "first"), [("of all", 1), ("of the rest", 7)])
def test_loggers_are_told_how_far_all_ranks_together_have_come(ran, folder, first):
    [path] = (ran.folder / folder).rglob("metrics.csv")
    with path.open() as file:
        lines = [line for line in csv.DictReader(file) if line["data/component/web/samples"]]
    assert [int(line["step"]) for line in lines] == list(range(first, 12))
    for line in lines:
        steps = int(line["step"]) + 1
        for name, weight in WEIGHTS.items():
            samples, passes = (
                float(line[f"data/component/{name}/{figure}"]) for figure in ("samples", "passes")
            )
            assert samples == weight * steps
            assert passes == pytest.approx(samples / sum(COUNTS[name]))
