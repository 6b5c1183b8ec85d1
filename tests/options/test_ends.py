"""Fits that are ended by Ctrl-C, by a signal to one process or by an exception leave nothing."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import wait_for

HERE = Path(__file__).parent


def waiting(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("waiting-*.json")]


@pytest.mark.ddp
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("devices", "whole_group"),
    [(2, True), (1, False)],
    ids=["Ctrl-C on two ranks and all workers", "SIGINT to the trainer process alone"],
)
def test_an_interrupted_fit_leaves_no_process_and_ends_with_its_report(
    devices, whole_group, option_shards, start_program, processes_of_session
):
    folder = option_shards("interrupted")
    command = [sys.executable, str(HERE / "run_interrupted.py"), str(folder), str(devices)]
    with start_program(command, folder) as process:
        wait_for(lambda: len(waiting(folder)) == devices or process.poll() is not None, 180)
        if len(ranks := waiting(folder)) < devices:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"did not begin: {process.communicate()[0][-3000:]}", pytrace=False)
        workers = [pid for rank in ranks for pid in rank["workers"]]
        assert {*workers} <= {*processes_of_session(process.pid)}
        assert len(workers) == 2 * devices + (devices - 1)  # train's, val's; the second rank
        if whole_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=100)  # when all that hold the pipe have ended
        gone = wait_for(lambda: not processes_of_session(process.pid), within_s=20)
        assert gone, [psutil.Process(pid).cmdline() for pid in processes_of_session(process.pid)]
    assert process.returncode == 1  # Lightning's own, after its graceful shutdown
    assert "Detected KeyboardInterrupt" in output
    assert output.count("data throughput: ") == 1
    warned = [line for line in output.splitlines() if "Warning" in line]
    if devices > 1:  # Lightning kills the second rank, which may not give back its semaphores
        warned = [line for line in warned if "UserWarning: resource_tracker: " not in line]
    assert warned == []
    assert "Traceback" not in output


@pytest.mark.ddp
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_rank_that_raises_ends_the_other_and_all_workers(
    option_shards, start_program, processes_of_session
):
    folder = option_shards("one_raises")
    command = [sys.executable, str(HERE / "run_interrupted.py"), str(folder), "2", "raise"]
    with start_program(command, folder) as process:
        output, _ = process.communicate(timeout=200)  # when all that hold the pipe have ended
        gone = wait_for(lambda: not processes_of_session(process.pid), within_s=20)
        assert gone, [psutil.Process(pid).cmdline() for pid in processes_of_session(process.pid)]
    assert [len(rank["workers"]) >= 2 for rank in waiting(folder)] == [True, True]
    assert process.returncode not in (0, None)
    assert "ArithmeticError" in output
