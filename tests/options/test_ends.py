"""Fits that are ended by Ctrl-C, by a signal to one process or by an exception leave nothing."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked_programs import read_to_end
from waiting import is_running, wait_for

PROGRAM = Path(__file__).with_name("run_interrupted.py")


def waiting(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("waiting-*.json")]


@pytest.mark.ddp
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_interrupted_fit_leaves_no_process_and_ends_with_its_report(
    option_shards, forked_programs, processes_of_session
):
    """Ctrl-C on two ranks and all workers."""
    devices = 2
    folder = option_shards("interrupted")
    with forked_programs.started([PROGRAM, folder, devices], folder) as running:
        [main] = running.pids  # Lightning starts the second rank
        wait_for(lambda: len(waiting(folder)) == devices or not is_running(main), 180)
        if len(ranks := waiting(folder)) < devices:
            os.killpg(main, signal.SIGKILL)
            pytest.fail(f"did not begin: {read_to_end(running.output, 60)[-3000:]}", pytrace=False)
        workers = [pid for rank in ranks for pid in rank["workers"]]
        assert {*workers} <= {*processes_of_session(main)}
        assert len(workers) == 2 * devices + (devices - 1)  # train's, val's; the second rank
        os.killpg(main, signal.SIGINT)
        output = read_to_end(running.output, 100)
        gone = wait_for(lambda: not processes_of_session(main), within_s=20)
        assert gone, [psutil.Process(pid).cmdline() for pid in processes_of_session(main)]
    assert running.statuses == [1]  # Lightning's own, after its graceful shutdown
    assert "Detected KeyboardInterrupt" in output
    assert output.count("data throughput: ") == 1
    warned = [line for line in output.splitlines() if "Warning" in line]
    # Lightning kills the second rank, which may not give back its semaphores
    assert [line for line in warned if "UserWarning: resource_tracker: " not in line] == []
    assert "Traceback" not in output
