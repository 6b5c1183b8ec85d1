"""torchrun's agents die, leave and join: what the weights were trained on stays each sample once.

A run trains 400 samples for two epochs, three a rank and step, with a checkpoint every four steps,
by configs/elastic.yaml. A rank waits at a given step, so that what happens to it happens there.
"""

import os
import random
import shlex
import signal

import pytest
from elastic_runs import Attempt, block_of_page, check_ledger, kill_all

CHAINS = 40 if os.environ.get("LONG_RUNS") else 1

pytestmark = [pytest.mark.ddp, pytest.mark.slow, pytest.mark.timeout(600)]


def check_kill_and_rejoin(launchers, start, killed=15, joined=21):
    """One of two ranks is killed in one step, and in another one of the other rank it is joined."""
    other, host = start("other"), start("host")
    launchers.run.wait_for_stop(0)
    kill_all([other])
    launchers.run.wait_for_stop(1)
    joining = start("new")
    assert [launchers.wait_for_end(pid) for pid in (host, joining)] == [0, 0]
    first, second, _ = check_ledger(launchers.run.folder, [2, 1, 2])
    assert (first, second) == (Attempt(2, 0, killed), Attempt(1, killed // 4 * 4, joined))


def test_an_agent_is_killed_and_a_new_one_joins(launchers_of):
    launchers = launchers_of((2, 15, "other"), (1, 21, "host"))
    check_kill_and_rejoin(launchers, launchers.start_agent)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(CHAINS))
def test_an_agent_is_killed_and_a_new_one_joins_anywhere(launchers_of, seed):
    draws = random.Random(seed)
    killed = draws.randint(4, 100)
    joined = killed // 4 * 4 + draws.randint(1, 40)
    launchers = launchers_of((2, killed, "other"), (1, joined, "host"))
    check_kill_and_rejoin(launchers, launchers.start_agent, killed, joined)


@pytest.mark.matrix
def test_the_command_of_the_page_survives_a_kill_and_takes_in_a_new_agent(launchers_of):
    launchers = launchers_of((2, 15, "other"), (1, 21, "host"), num_workers=1)
    command = block_of_page("bash", "export TORCH")
    for of_page, here in {
        "HOST:29500": f"127.0.0.1:{launchers.port}",
        "--nproc-per-node=8": "--nproc-per-node=1 --local-addr=127.0.0.1",
        "fit --config configs/elastic.yaml": shlex.join(launchers.run.options),
    }.items():
        assert of_page in command
        command = command.replace(of_page, here)

    def start(name):
        is_host = f"keep_alive_max_attempt=3,is_host={int(name == 'host')}"
        script = command.replace("keep_alive_max_attempt=3", is_host)
        return launchers.start_shell(script, LAUNCHER_NAME=name)

    check_kill_and_rejoin(launchers, start)


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
def test_an_agent_joins_late(launchers_of):
    launchers = launchers_of((1, 30, "host"))
    host = launchers.start_agent("host")
    launchers.run.wait_for_stop(0)
    joining = launchers.start_agent("new")
    assert [launchers.wait_for_end(pid) for pid in (host, joining)] == [0, 0]
    check_ledger(launchers.run.folder, [1, 2])


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
