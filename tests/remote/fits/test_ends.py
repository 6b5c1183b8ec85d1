"""A fit that is told to end, or is killed, leaves nothing, also while a server does not answer."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from fault_server import Fault
from waiting import is_alive, is_running, wait_for

from tests.remote.conftest import SIGNED
from tests.remote.fits.conftest import COUNTS, rows_of_ranks
from tests.remote.fits.test_equal_fits import NAMES, two_blocks
from tests.remote.published import publish, server_put

pytestmark = pytest.mark.network

GONE_WITHIN_S = 5.0
"""On a machine that runs nothing else, as `-m matrix` asks for."""

BESIDE_OTHERS_S = 10.0
STALL = Fault("stall", 3)
POOLS = ("inline", "threads", "processes")


@pytest.fixture
def urls(local_paths, server, tmp_path):
    publish(local_paths, server_put(server), tmp_path, counts=COUNTS)
    return f"{server.url}/data/{NAMES}{SIGNED}"


def session_of(pid):
    """The running processes that a program started, and itself."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid and is_alive(process):
                found.append(process)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def check(fits, urls, server, pool, number, within_s=GONE_WITHIN_S):
    """The last process is gone soon after a signal, while a server does not answer."""
    workers = 0 if pool == "inline" else 2
    loader = {"pool": pool}  # pieces are dropped and fetched again, without end
    loader["cache_gib"] = two_blocks(urls, fits.folder, num_workers=workers, **loader)
    server.always = Fault("late", 0.03)
    path = fits.job(urls, epochs=10**6, loader=loader, num_workers=workers)
    with fits.started(path) as running:
        (pid,) = running.pids
        steps = lambda: len(rows_of_ranks(path.parent))  # noqa: E731
        assert wait_for(lambda: steps() > 20 or not is_running(pid), 60)
        assert is_running(pid)
        server.always = STALL
        assert wait_for(lambda: steps() == (time.sleep(0.5), steps())[1], 30)
        there = len(session_of(pid))
        began = time.perf_counter()
        os.kill(pid, number)
        assert wait_for(lambda: not session_of(pid), 60)
        seconds = time.perf_counter() - began
    assert there >= (3 if pool == "processes" else 1)
    assert seconds < within_s


@pytest.mark.slow
def test_sigterm_ends_a_fit_that_waits_for_a_server(fits, urls, server):
    check(fits, urls, server, "inline", signal.SIGTERM, BESIDE_OTHERS_S)


@pytest.mark.matrix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("pool", POOLS)
def test_nothing_is_left_of_a_fit_that_was_ended(pool, number, fits, urls, server):
    before = set(Path("/dev/shm").iterdir())
    check(fits, urls, server, pool, number)
    assert set(Path("/dev/shm").iterdir()) == before
