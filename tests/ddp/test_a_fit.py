"""What two real ranks guarantee, in the names of its tests: equal steps, and each sample once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_shards.plan.draws import shard_draws, stream_start

pytestmark = [pytest.mark.ddp, pytest.mark.slow]

RANKS = (0, 1)
BATCH_SIZE = 4
TRAIN = (11, 30, 7)  # 48 samples in shards of unequal sizes: 6 steps
VAL = {"": (7, 6)}  # the split of this name, or else sets
SETS = {"web": (7, 6), "one": (1,), "hand": (3, 0, 2)}


@dataclass(frozen=True)
class Case:
    """One fit of two ranks, and the steps that an epoch of it must have."""

    name: str
    num_workers: int
    steps: int = 6
    train: tuple[int, ...] = TRAIN
    val: dict[str, tuple[int, ...]] = field(default_factory=lambda: VAL)
    epochs: int = 2
    train_options: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


UNSHUFFLED: dict[str, Any] = {"reader": "stream", "shuffle_buffer": 0}
CASES = [
    Case("no workers", 0, epochs=3),
    Case("two workers", 2, epochs=3, train_options=UNSHUFFLED),
    Case("fewer shards than ranks x workers", 2, steps=2, train=(17,), val={"": (9,)}),
    Case("a limit", 2, steps=4, val=SETS, trainer={"limit_train_batches": 4}),
    Case("each sample once", 2, train_options={"sampling": "shuffled"}),
    Case("fewer val samples than a global batch", 1, val={"": (3,)}),
    Case("one val sample", 1, val={"": (0, 1)}),
    Case("saving", 0, val=SETS, more={"save_every": 4}),
    Case("resumed within an epoch", 0, val=SETS, more={"resume": "saved/step=4.ckpt"}),
    Case("resumed at an epoch's end", 0, epochs=3, more={"resume": "saved/step=12.ckpt"}),
]
BY_NAME = {case.name: case for case in CASES}
WHOLE = [case.name for case in CASES if "resume" not in case.more]


def as_json(case: Case, folder: Path, pack_into: Callable[..., list[str]]) -> dict[str, Any]:
    """The case as `rank.py` wants it, its shards packed."""

    def split(name: str, counts: tuple[int, ...], options: dict[str, Any]) -> dict[str, Any]:
        place = folder / f"{name}-{'-'.join(map(str, counts))}"
        if not place.exists():
            pack_into(place, counts)
        return {"urls": f"{place}/*.tar", "options": options}

    splits = {"train": split("train", case.train, case.train_options)}
    sets = {name: split("val", counts, {}) for name, counts in case.val.items()}
    validated = {"splits": splits, "val_sets": sets}
    if "" in sets:
        validated = {"splits": splits | {"val": sets[""]}}
    trainer = {"max_epochs": case.epochs} | case.trainer
    data = {"num_workers": case.num_workers, "batch_size": BATCH_SIZE}
    return {"name": case.name, **validated, "trainer": trainer, "data": data, **case.more}


@pytest.fixture(scope="module")
def ran(tmp_path_factory, pack_into, run_ranks):
    """All cases, run by one pair of ranks."""
    folder = tmp_path_factory.mktemp("fit")
    return run_ranks(folder, [as_json(case, folder, pack_into) for case in CASES], timeout_s=200)


def batches_of(ran: Any, name: str, rank: int) -> dict[tuple[int, int], list[list[int]]]:
    """The ids that a rank trained on, by epoch and step."""
    return {(each["epoch"], each["step"]): each["ids"] for each in ran.of(name, rank, "train")}


def all_ids(counts: tuple[int, ...]) -> Counter[tuple[int, int]]:
    return Counter((shard, number) for shard, count in enumerate(counts) for number in range(count))


def real_ids(records: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """How often each sample was validated on, repeats (weight 0) left out."""
    found: Counter[tuple[int, int]] = Counter()
    for record in records:
        pairs = zip(record["ids"], record["weights"], strict=True)
        found.update((shard, number) for (shard, number), weight in pairs if weight)
    return found


def test_no_rank_says_a_warning(ran):  # in the ranks themselves they are errors
    assert "Warning" not in ran.output


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", WHOLE)
def test_every_rank_takes_the_planned_steps_in_every_epoch(ran, name, rank):
    case = BY_NAME[name]
    planned = [(epoch, step) for epoch in range(case.epochs) for step in range(case.steps)]
    assert list(batches_of(ran, name, rank)) == planned
    assert all(len(ids) == BATCH_SIZE for ids in batches_of(ran, name, rank).values())


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", BY_NAME)
def test_the_loader_and_the_trainer_know_the_number_of_steps(ran, name, rank):
    case, end = BY_NAME[name], ran.end(name, rank)
    assert end["num_training_batches"] == case.steps
    assert end["length"] == sum(case.train) // (2 * BATCH_SIZE)
    steps = [-(-sum(counts) // (2 * BATCH_SIZE)) for counts in case.val.values()]
    assert end["num_val_batches"] == steps
    assert end["global_step"] == case.epochs * case.steps


def test_every_fit_ends_with_one_report_by_rank_0(ran):
    assert ran.output.count("data throughput: ") == len(CASES)


def test_every_epoch_of_an_indexed_fit_is_proven_by_one_line_of_rank_0(ran):
    proven = [line for line in ran.output.splitlines() if ", as the order says (digest" in line]
    indexed = [case for case in CASES if case.train_options.get("reader") != "stream"]
    trained_before = 2  # epochs, of the fit that is resumed at an epoch's end
    assert len(proven) == sum(case.epochs for case in indexed) - trained_before, proven


def validated(ran: Any, name: str, rank: int) -> list[dict[str, Any]]:
    return [each for each in ran.of(name, rank, "val") if not each["sanity"]]


@pytest.mark.parametrize("name", BY_NAME)
def test_every_validation_sees_each_sample_of_each_set_once_over_the_ranks(ran, name):
    case = BY_NAME[name]
    records = [each for rank in RANKS for each in validated(ran, name, rank)]
    epochs = sorted({each["epoch"] for each in records})
    first = int("end" in name and "resume" in name) * 2
    assert epochs == list(range(first, case.epochs))
    for loader, counts in enumerate(case.val.values()):
        for epoch in epochs:
            here = [each for each in records if (each["epoch"], each["loader"]) == (epoch, loader)]
            assert real_ids(here) == all_ids(counts)


def test_one_sample_for_two_ranks_is_repeated_with_weight_0(ran):
    weights = [ran.of("one val sample", rank, "val")[-1]["weights"] for rank in RANKS]
    assert weights == [[1, 0, 0, 0], [0, 0, 0, 0]]


def test_each_worker_of_each_rank_reads_draws_of_its_own_over_the_ends_of_epochs(ran):
    draws = shard_draws(len(TRAIN), seed=0, epoch=0, start=0, stop=400)
    for rank in RANKS:
        batches = batches_of(ran, "two workers", rank)
        in_order = [batches[place] for place in sorted(batches)]
        for worker in (0, 1):  # batch 0 of the run comes from worker 0, batch 1 from worker 1
            shards = draws[worker * 2 + rank :: 4].tolist()
            expected = [[shard, number] for shard in shards for number in range(TRAIN[shard])]
            expected = expected[stream_start(np.array(TRAIN), 0, worker * 2 + rank) :]
            served = [list(each) for batch in in_order[worker::2] for each in batch]
            assert served == expected[: len(served)]


def test_shuffled_ranks_together_train_on_each_sample_once_an_epoch(ran):
    for epoch in range(2):
        seen = Counter(
            tuple(sample)
            for rank in RANKS
            for each in ran.of("each sample once", rank, "train")
            if each["epoch"] == epoch
            for sample in each["ids"]
        )
        assert seen == all_ids(TRAIN)


@pytest.mark.parametrize("rank", RANKS)
def test_a_fit_resumed_within_an_epoch_takes_the_steps_that_are_left(ran, rank):
    whole, resumed = (batches_of(ran, name, rank) for name in ("saving", "resumed within an epoch"))
    assert resumed == dict(list(whole.items())[4:])


@pytest.mark.parametrize("rank", RANKS)
def test_a_fit_resumed_at_an_epochs_end_goes_on_as_if_it_had_never_stopped(ran, rank):
    resumed = batches_of(ran, "resumed at an epoch's end", rank)
    whole = batches_of(ran, "no workers", rank)
    assert resumed == {(2, step): whole[2, step] for step in range(6)}
