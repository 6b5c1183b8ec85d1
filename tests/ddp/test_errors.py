"""Two real ranks with bad input: one clear error on both, with the remedy, in seconds."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.ddp, pytest.mark.slow]

RANKS = (0, 1)
WITHIN_S = 10.0  # the first case also starts the other rank, which imports torch


class Expected(NamedTuple):
    """The error, what every rank must say, and the rank that is blamed (None: each itself)."""

    error: str
    texts: tuple[str, ...]
    blamed: int | None = None


EXPECTED: dict[str, Expected] = {
    "no shard on rank 0": Expected("ShardNotFoundError", ("no file matches", "rank0"), 0),
    "no shard on rank 1": Expected("ShardNotFoundError", ("no file matches", "rank1"), 1),
    "one shard less on rank 1": Expected(
        "PlanError", ("the ranks disagree on", "rank 0 has", "rank 1 has", "the same shards")
    ),
    "a truncated shard on rank 1": Expected("DamagedShardError", ("rank1", ".tar"), 1),
    "another seed on each rank": Expected(
        "PlanError", ("the ranks disagree on seed: rank 0 has 0, rank 1 has 1", "same settings")
    ),
    "a transform that fails on rank 1": Expected(
        "TransformError", ("the transform of field 'label' failed", "does not like this rank"), 1
    ),
    "a set without shards on rank 1": Expected(
        "ShardNotFoundError", ("val/hand: no file matches", "only-on-rank0-rank1"), 1
    ),
    "another set on each rank": Expected(
        "PlanError", ("disagree on the evaluation sets", "'val/web0'", "'val/web1'")
    ),
    "a shorter set on rank 1": Expected(
        "PlanError", ("the steps of an epoch of val/hand: rank 0 has 3, rank 1 has 2",)
    ),
    "a loader of no rank": Expected(
        "ConfigError", ("2 processes", "fit(model, datamodule=", "rank=", "world_size=")
    ),
    "another seed than the checkpoint's": Expected(
        "StateError", ("made with seed=0, this run has 3", "set it back to resume")
    ),
}


def as_cases(folder: Path, pack_into: Callable[..., list[str]]) -> list[dict[str, Any]]:
    """The cases as `rank.py` wants them, their shards packed; rank 1's may differ."""
    pack_into(folder / "good", [11, 9], "shard")
    for rank in RANKS:
        for case in ("fewer", "truncated"):
            shutil.copytree(folder / "good", folder / f"{case}-rank{rank}")
    (folder / "fewer-rank1/shard-000001.tar").unlink()
    shard = folder / "truncated-rank1/shard-000001.tar"
    shard.write_bytes(shard.read_bytes()[:5000])
    for rank in RANKS:
        shutil.copytree(folder / "good", folder / f"only-on-rank{rank}-rank{rank}")

    def split(place: str) -> dict[str, Any]:
        return {"urls": f"{folder}/{place}/shard-*.tar", "options": {}}

    def case(name: str, train: str = "good", **more: Any) -> dict[str, Any]:
        data = {"num_workers": 0, "batch_size": 4} | more.pop("data", {})
        if "sets" in more:
            more["val_sets"] = {each: split(place) for each, place in more.pop("sets").items()}
        splits = {"train": split(train)}
        return {"name": name, "fails": True, "splits": splits, **more, "data": data}

    return [
        case("saves", fails=False, save_every=1),
        case("no shard on rank 0", "only-on-rank1-rank{rank}"),
        case("no shard on rank 1", "only-on-rank0-rank{rank}"),
        case("one shard less on rank 1", "fewer-rank{rank}"),
        case("a truncated shard on rank 1", "truncated-rank{rank}"),
        case("another seed on each rank", seed_is_rank=True),
        case("a transform that fails on rank 1", fail_on_rank_1=True),
        case(
            "a set without shards on rank 1",
            sets={"web": "good", "hand": "only-on-rank0-rank{rank}"},
        ),
        case("another set on each rank", sets={"web{rank}": "good"}),
        case("a shorter set on rank 1", sets={"web": "good", "hand": "fewer-rank{rank}"}),
        case("a loader of no rank", bare=True, place={}),
        case("another seed than the checkpoint's", data={"seed": 3}, resume="saved/step=1.ckpt"),
        case("works again", fails=False),
    ]


@pytest.fixture(scope="module")
def ran(tmp_path_factory, pack_into, run_ranks):
    """All cases, run by one pair of ranks that goes on after each error."""
    folder = tmp_path_factory.mktemp("errors")
    return run_ranks(folder, as_cases(folder, pack_into), timeout_s=120)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", EXPECTED)
def test_both_ranks_raise_the_same_error_with_the_remedy(ran, name, rank):
    expected, end = EXPECTED[name], ran.end(name, rank)
    assert (end["kind"], end.get("type")) == ("error", expected.error)
    assert [text for text in expected.texts if text not in end["message"]] == []
    if expected.blamed is not None:
        is_told = end["message"].startswith(f"rank {expected.blamed} failed: ")
        assert is_told == (rank != expected.blamed)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", EXPECTED)
def test_the_error_comes_before_a_step_within_seconds(ran, name, rank):
    records = ran.of(name, rank)
    assert [each["kind"] for each in records] == ["error"]
    assert records[0]["seconds"] < WITHIN_S


@pytest.mark.parametrize("rank", RANKS)
def test_the_ranks_can_fit_after_all_these_errors(ran, rank):
    assert ran.end("works again", rank)["global_step"] == 4
