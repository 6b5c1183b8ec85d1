"""Three real ranks: the one that holds the others by its loader is found."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from forked_programs import ForkedPrograms

pytestmark = [pytest.mark.ddp, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("throughput_rank.py")


def test_the_rank_whose_loader_is_slow_is_found_though_all_ranks_take_as_long(
    tmp_path: Path, pack_into: Callable[..., list[str]], forked_programs: ForkedPrograms
) -> None:
    pack_into(tmp_path / "shards", [20, 28])
    output, statuses = forked_programs.run([SCRIPT, tmp_path], tmp_path, ranks=3)
    assert statuses == [0, 0, 0], output
    assert output.count("to change: ") == 1
    assert "slowest rank: rank 1 holds all others by its loader" in output
    assert "to change: find out what slows the loader of rank 1" in output
    assert "loader-bound" in output
    with (tmp_path / "logged" / "metrics.csv").open() as file:
        *_, last = csv.DictReader(file)
    assert float(last["data/run/slowest_rank"]) == 1
    # Rank 0, which logs, waits for nothing but rank 1, inside its own backward pass.
    assert float(last["data/run/wait_fraction"]) > 0.5
