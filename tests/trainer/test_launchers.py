"""Ranks that others than `ddp` start, and ranks that share their data."""

import pytest
from watching import ids_of, make_data

# matrix: each launcher starts ranks of its own, which takes a minute in all
pytestmark = [pytest.mark.ddp, pytest.mark.matrix, pytest.mark.timeout(300)]

RANKS = (0, 1)
STARTING = ("ddp_notebook", "ddp_spawn")
STARTED = ("torchrun", "tensor_parallel")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


@pytest.fixture(scope="module")
def starting(option_shards, run_program):
    """Strategies that start their ranks themselves, one after the other in one program."""
    return run_program(option_shards("starting"), "run_launched.py", STARTING)


@pytest.fixture(scope="module")
def started(option_shards, run_program):
    """What two ranks of `torchrun` do, one after the other."""
    return run_program(option_shards("started"), "run_launched.py", STARTED, TORCHRUN)


@pytest.fixture(scope="module")
def expected(option_shards):
    """The steps of two epochs of a rank, from a loader without any Trainer."""
    data = make_data(option_shards("expected"), "indexed")

    def steps(rank, world_size):
        loader = data.loader("train", rank=rank, world_size=world_size)
        return {
            (epoch, step): ids_of(batch) for epoch in range(2) for step, batch in enumerate(loader)
        }

    return steps


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("launcher", [*STARTING, "torchrun"])
def test_ranks_of_every_launcher_take_the_planned_samples(
    starting, started, expected, launcher, rank
):
    ran = starting if launcher in STARTING else started
    assert ran.steps(launcher, rank) == expected(rank, 2)
    assert ran.of(launcher, rank)["place"] == [rank, 2]
    assert len(ran.of(launcher, rank)["validations"]) == 2


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("launcher", [*STARTING, *STARTED])
def test_no_worker_is_left_when_the_data_of_a_rank_are_torn_down(starting, started, launcher, rank):
    seen = (starting if launcher in STARTING else started).of(launcher, rank)
    assert len(seen["workers"]) == 2  # train's, val's
    assert seen["left"] == []
    if launcher in STARTING:  # the ranks are gone, too
        assert f"{launcher} left []" in starting.output


@pytest.mark.parametrize("rank", RANKS)
def test_tensor_parallel_ranks_get_the_same_batches_those_of_one_rank(started, expected, rank):
    seen = started.of("tensor_parallel", rank)
    assert (seen["place"], seen["world_size"]) == ([0, 1], 2)
    assert started.steps("tensor_parallel", rank) == expected(0, 1)
    assert list(map(len, seen["validations"])) == [7, 7]


def test_samples_of_tensor_parallel_ranks_are_counted_once_and_nothing_warns(starting, started):
    """26 of them, not 52; `torchrun`'s two ranks share 24."""
    assert "Warning" not in starting.output + started.output
    for epoch in range(2):
        assert f"epoch {epoch}: 26 samples in 13 steps of 1 rank, as the order" in started.output
        assert f"epoch {epoch}: 24 samples in 6 steps of 2 ranks, as the order" in started.output
