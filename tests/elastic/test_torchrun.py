"""torchrun's agents die, leave and join: what the weights were trained on stays each sample once.

A run trains 400 samples for two epochs, three a rank and step, with a checkpoint every four steps,
by configs/elastic.yaml. A rank waits at a given step, so that what happens to it happens there.
"""

import os
import random
import signal

import pytest
from elastic_runs import Attempt, check_ledger, kill_all

CHAINS = 40 if os.environ.get("LONG_RUNS") else 1

pytestmark = [pytest.mark.ddp, pytest.mark.slow, pytest.mark.timeout(600)]


def check_kill_and_rejoin(launchers_of, killed, joined):
    """One of two ranks is killed in one step, and in another one of the other rank it is joined."""
    launchers = launchers_of((2, killed, "other"), (1, joined, "host"))
    other, host = launchers.start_agent("other"), launchers.start_agent("host")
    launchers.run.wait_for_stop(0)
    kill_all([other])
    launchers.run.wait_for_stop(1)
    joining = launchers.start_agent("new")
    assert [launchers.wait_for_end(pid) for pid in (host, joining)] == [0, 0]
    first, second, _ = check_ledger(launchers.run.folder, [2, 1, 2])
    assert (first, second) == (Attempt(2, 0, killed), Attempt(1, killed // 4 * 4, joined))


def test_an_agent_is_killed_and_a_new_one_joins(launchers_of):
    check_kill_and_rejoin(launchers_of, 15, 21)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(CHAINS))
def test_an_agent_is_killed_and_a_new_one_joins_anywhere(launchers_of, seed):
    draws = random.Random(seed)
    killed = draws.randint(4, 100)
    joined = killed // 4 * 4 + draws.randint(1, 40)
    check_kill_and_rejoin(launchers_of, killed, joined)


@pytest.mark.matrix
def test_a_rank_is_killed_and_its_agent_lives(launchers_of):
    launchers = launchers_of((2, 15, "other"))
    pids = launchers.start_agent("other"), launchers.start_agent("host")
    kill_all([launchers.run.wait_for_stop(0)])
    assert [launchers.wait_for_end(pid) for pid in pids] == [0, 0]
    check_ledger(launchers.run.folder, [2, 2])


@pytest.mark.matrix
def test_an_agent_is_told_to_end(launchers_of):
    launchers = launchers_of((2, 15, "other"))
    leaving, host = launchers.start_agent("other"), launchers.start_agent("host")
    launchers.run.wait_for_stop(0)
    os.kill(leaving, signal.SIGTERM)
    assert [launchers.wait_for_end(pid) for pid in (leaving, host)] == [1, 0]
    check_ledger(launchers.run.folder, [2, 1])


@pytest.mark.matrix
def test_the_agent_that_hosts_the_store_dies_and_the_job_is_started_again(launchers_of):
    launchers = launchers_of((2, 15, "host"))
    other, host = launchers.start_agent("other"), launchers.start_agent("host")
    launchers.run.wait_for_stop(0)
    kill_all([host])
    assert launchers.wait_for_end(other) == 1
    pids = launchers.start_agent("other"), launchers.start_agent("host")
    assert [launchers.wait_for_end(pid) for pid in pids] == [0, 0]
    first, second = check_ledger(launchers.run.folder, [2, 2])
    assert (first.last, second.first) == (15, 12)
