"""Two real ranks that validate on several sets: in step, each sample once, and the same errors."""

import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.ddp, pytest.mark.slow]

RANKS = (0, 1)
BATCH_SIZE = 4
SETS = {"web": (7, 6), "one": (1,), "hand": (3, 0, 2)}  # 2, 1 and 1 steps of two ranks
STEPS = [2, 1, 1]

FAILURES: dict[str, tuple[str, tuple[str, ...], int | None]] = {
    "a set without shards on rank 1": (
        "ShardNotFoundError", ("val/hand: no file matches", "only-on-rank0-rank1"), 1,
    ),
    "another set on each rank": (
        "PlanError",
        ("the ranks disagree on the evaluation sets", "'val/web0'", "'val/web1'"),
        None,
    ),
    "a longer set on rank 1": (
        "PlanError",
        ("the ranks disagree on the steps of an epoch of val/hand: rank 0 has 1, rank 1 has 2",),
        None,
    ),
}  # fmt: skip
"""The error, what every rank says, and the rank that is blamed."""


def as_cases(folder: Any, pack_into: Callable[..., list[str]]) -> list[dict[str, Any]]:
    """The cases as `rank.py` wants them, their shards packed; rank 1's may differ."""
    pack_into(folder / "train", (11, 30, 7))
    for name, counts in SETS.items():
        pack_into(folder / name, counts)
    pack_into(folder / "longer-rank1", (9, 4))
    shutil.copytree(folder / "hand", folder / "longer-rank0")
    shutil.copytree(folder / "hand", folder / "only-on-rank0-rank0")

    def split(place: str) -> dict[str, Any]:
        return {"urls": f"{folder}/{place}/shard-*.tar", "options": {}}

    def case(name: str, sets: dict[str, str], **more: Any) -> dict[str, Any]:
        data = {"num_workers": 0, "batch_size": BATCH_SIZE} | more.pop("data", {})
        sets_of_case = {each: split(place) for each, place in sets.items()}
        splits = {"train": split("train")}
        return {"name": name, "splits": splits, "val_sets": sets_of_case, "data": data} | more

    good = {name: name for name in SETS}
    failing: dict[str, dict[str, str]] = {
        "a set without shards on rank 1": {**good, "hand": "only-on-rank0-rank{rank}"},
        "a longer set on rank 1": {**good, "hand": "longer-rank{rank}"},
    }
    return [
        case("no workers", good, save_every=4),
        *(case(name, sets, fails=True) for name, sets in failing.items()),
        case("another set on each rank", {"web": "web"}, fails=True, rank_in_names=True),
        case("a worker", good, data={"num_workers": 1}, trainer={"max_epochs": 3}),
        case("resumed", good, resume="saved/step=4.ckpt"),
    ]


@pytest.fixture(scope="module")
def ran(tmp_path_factory, pack_into, run_ranks):
    """All cases, run by one pair of ranks that goes on after each error."""
    folder = tmp_path_factory.mktemp("sets")
    return run_ranks(folder, as_cases(folder, pack_into), timeout_s=120)


def validated(ran: Any, name: str, rank: int) -> list[dict[str, Any]]:
    return [each for each in ran.of(name, rank, "val") if not each["sanity"]]


@pytest.mark.parametrize("name", ["no workers", "a worker", "resumed"])
def test_every_validation_sees_each_sample_of_each_set_once_over_the_ranks(ran, name):
    records = [each for rank in RANKS for each in validated(ran, name, rank)]
    epochs = sorted({each["epoch"] for each in records})
    assert epochs == list(range(3 if name == "a worker" else 2))
    for loader, counts in enumerate(SETS.values()):
        once = Counter((shard, i) for shard, count in enumerate(counts) for i in range(count))
        for epoch in epochs:
            here = [each for each in records if (each["epoch"], each["loader"]) == (epoch, loader)]
            seen = Counter(
                tuple(sample)
                for each in here
                for sample, weight in zip(each["ids"], each["weights"], strict=True)
                if weight
            )
            assert seen == once


@pytest.mark.parametrize("name", ["no workers", "a worker", "resumed"])
def test_both_ranks_take_the_same_steps_of_each_set(ran, name):
    steps = [
        [(each["epoch"], each["loader"], each["step"]) for each in validated(ran, name, rank)]
        for rank in RANKS
    ]
    assert steps[0] == steps[1]
    once = [(loader, step) for loader, count in enumerate(STEPS) for step in range(count)]
    assert [step[1:] for step in steps[0] if step[0] == 1] == once
    for rank in RANKS:
        assert ran.end(name, rank)["num_val_batches"] == STEPS
        assert ran.end(name, rank)["workers"] == []


@pytest.mark.parametrize("rank", RANKS)
def test_a_fit_resumed_within_an_epoch_validates_and_trains_the_rest(ran, rank):
    steps = [(each["epoch"], each["step"]) for each in ran.of("resumed", rank, "train")]
    assert steps == [(0, 4), (0, 5), *((1, step) for step in range(6))]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", FAILURES)
def test_one_set_that_fails_is_the_same_error_of_both_ranks_before_a_step(ran, name, rank):
    error, texts, blamed = FAILURES[name]
    [end] = ran.of(name, rank)
    assert (end["kind"], end.get("type")) == ("error", error)
    assert [text for text in texts if text not in end["message"]] == []
    is_told = end["message"].startswith(f"rank {blamed} failed: ")
    assert is_told == (blamed is not None and rank != blamed)
    assert end["workers"] == []
