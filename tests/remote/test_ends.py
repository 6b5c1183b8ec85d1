"""A fit that is told to end, or is killed, leaves nothing, also while a server does not answer."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from fault_server import Fault
from waiting import is_alive, is_running, wait_for

from tests.remote.fits import rank
from tests.remote.test_remote_cache import ROOMY, run_need

pytestmark = [pytest.mark.network, pytest.mark.ddp]

GONE_WITHIN_S = 5.0
"""On a machine that runs nothing else, as `-m matrix` asks for."""

BESIDE_OTHERS_S = 10.0


@pytest.fixture
def check(published_shards, server, forked_programs, tmp_path):
    """Checks that the last process is gone soon after a signal, while a server does not answer."""

    def session_of(pid):
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == pid and is_alive(process):
                    found.append(process)
            except (ProcessLookupError, PermissionError):
                continue
        return found

    def ends(pool, number, within_s):
        given = {"urls": published_shards, "num_workers": 0 if pool == "inline" else 2}
        loader = {"cache_dir": str(tmp_path / "cache"), "pool": pool}
        # pieces are dropped and fetched again, without end
        roomy = run_need(rank.data_of(ranks=1, **given, **loader, **ROOMY))
        loader["cache_gib"] = (roomy.working_set_bytes + 1) / 2**30
        job = {"ranks": 1, "epochs": -1, "killed_at": None, "checkpoint": None, "loader": loader}
        (tmp_path / "job.json").write_text(json.dumps(job | given))
        told = tmp_path / "rows-0.jsonl"
        told.touch()
        steps = lambda: told.read_bytes().count(b"\n")  # noqa: E731
        server.always = Fault("late", 0.03)
        with forked_programs.started([rank.__file__, tmp_path / "job.json"], tmp_path) as running:
            (pid,) = running.pids
            assert wait_for(lambda: steps() > 20 or not is_running(pid), 60)
            assert is_running(pid)
            server.always = Fault("stall", 3)
            assert wait_for(lambda: steps() == (time.sleep(0.5), steps())[1], 30)
            assert len(session_of(pid)) >= (3 if pool == "processes" else 1)
            began = time.perf_counter()
            os.kill(pid, number)
            assert wait_for(lambda: not session_of(pid), 60)
            assert time.perf_counter() - began < within_s

    return ends


@pytest.mark.slow
def test_sigterm_ends_a_fit_that_waits_for_a_server(check):
    check("inline", signal.SIGTERM, BESIDE_OTHERS_S)


@pytest.mark.matrix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("pool", ["inline", "threads", "processes"])
def test_nothing_is_left_of_a_fit_that_was_ended(pool, number, check):
    before = set(Path("/dev/shm").iterdir())
    check(pool, number, GONE_WITHIN_S)
    assert set(Path("/dev/shm").iterdir()) == before
