"""What restarted jobs guarantee, in the names of its tests: weights see each sample once.

The agents of torchrun die, leave and join.

A run trains 400 samples for two epochs, three a rank and step, with a checkpoint every four steps,
by configs/elastic.yaml. A rank waits at a given step, so that what happens to it happens there.
"""

import os
import random
import signal

import pytest
from elastic_runs import check_ledger, kill_all

CHAINS = 40 if os.environ.get("LONG_RUNS") else 1

pytestmark = [pytest.mark.ddp, pytest.mark.slow, pytest.mark.timeout(600)]


def moments(seed):
    """In which step one of two ranks is killed, and in which one the other is joined."""
    draws = random.Random(seed)
    killed = draws.randint(4, 100)
    return killed, killed // 4 * 4 + draws.randint(5, 40)  # behind another checkpoint


ANYWHERE = [pytest.param(*moments(seed), marks=pytest.mark.matrix) for seed in range(CHAINS)]


@pytest.mark.parametrize(("killed", "joined"), [(15, 21), *ANYWHERE])
def test_an_agent_is_killed_and_a_new_one_joins(launchers_of, killed, joined):
    launchers = launchers_of((2, killed, "other"), (1, joined, "host"))
    other, host = launchers.start_agent("other"), launchers.start_agent("host")
    launchers.wait_for_stop(0)
    kill_all([other])
    launchers.wait_for_stop(1)
    joining = launchers.start_agent("new")
    assert [launchers.wait_for_end(pid) for pid in (host, joining)] == [0, 0]
    assert check_ledger(launchers.folder, [2, 1, 2])[:2] == [0, killed // 4 * 4]


@pytest.mark.matrix
def test_an_agent_is_told_to_end(launchers_of):
    launchers = launchers_of((2, 15, "other"))
    leaving, host = launchers.start_agent("other"), launchers.start_agent("host")
    launchers.wait_for_stop(0)
    os.kill(leaving, signal.SIGTERM)
    assert [launchers.wait_for_end(pid) for pid in (leaving, host)] == [1, 0]
    check_ledger(launchers.folder, [2, 1])
