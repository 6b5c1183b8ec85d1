"""Three real ranks: the one that holds the others is found, by its loader or by its model."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked_programs import ForkedPrograms

pytestmark = [pytest.mark.ddp, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("throughput_rank.py")


@dataclass(frozen=True)
class Ran:
    """What three ranks said, and what they logged of the whole run, by the slow part."""

    output: str
    reports: dict[str, str]
    logged: dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory,
    pack_into: Callable[..., list[str]],
    forked_programs: ForkedPrograms,
) -> Ran:
    folder = tmp_path_factory.mktemp("ranks")
    pack_into(folder / "shards", [20, 28])
    output, statuses = forked_programs.run([SCRIPT, folder], folder, ranks=3)
    assert statuses == [0, 0, 0], output
    said = output.split("data throughput: ")[1:]
    logged = {}
    for part in ("loader", "model"):
        with (folder / part / "metrics.csv").open() as file:
            *_, last = csv.DictReader(file)
        logged[part] = {name: float(value) for name, value in last.items() if value}
    return Ran(output, dict(zip(("loader", "model"), said, strict=True)), logged)


def test_each_fit_has_one_report(ran: Ran) -> None:
    assert ran.output.count("to change: ") == 2


def test_the_rank_whose_loader_is_slow_is_found_though_all_ranks_take_as_long(ran: Ran) -> None:
    assert "slowest rank: rank 1 holds all others by its loader" in ran.reports["loader"]
    assert "to change: find out what slows the loader of rank 1" in ran.reports["loader"]
    assert ran.logged["loader"]["data/run/slowest_rank"] == 1


def test_the_wait_of_the_slow_rank_is_the_wait_of_the_job(ran: Ran) -> None:
    """Rank 0, which logs, waits for nothing but rank 1, inside its own backward pass."""
    assert ran.logged["loader"]["data/run/wait_fraction"] > 0.5
    assert "loader-bound" in ran.reports["loader"]


def test_the_rank_whose_model_is_slow_is_found_though_all_ranks_take_as_long(ran: Ran) -> None:
    assert "slowest rank: rank 2 holds all others by its forward pass" in ran.reports["model"]
    assert "to change: find out what slows the model on rank 2" in ran.reports["model"]
    assert ran.logged["model"]["data/run/slowest_rank"] == 2
    assert "trainer-bound" in ran.reports["model"]
