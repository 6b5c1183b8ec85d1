"""What processes of a writing tool guarantee, in the names of its tests: none is left behind."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import is_running, wait_for

from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.errors import SampleError, WorkerError

SLEEPING = """
import os, sys, time
sys.path.insert(0, {folder!r})
from lightning_shards.dataprep.processes import map_parallel
import tasks
if __name__ == "__main__":
    for _ in map_parallel(tasks.sleep, range(3), 3):
        pass
"""

TASKS = """
import os, subprocess
def sleep(number):
    program = subprocess.Popen(["sleep", "300"])
    for pid in (os.getpid(), program.pid):
        open(f"{os.path.dirname(__file__)}/{pid}.pid", "w").close()
    program.wait()
"""


def fail_at_three(number):
    if number == 3:
        raise SampleError("three")
    return number


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_error_ends_the_run_and_its_processes():
    before = children()
    with pytest.raises(SampleError, match="three"):
        list(map_parallel(fail_at_three, range(10), 2))
    assert children() <= before


def children():
    """Processes under this one, without what multiprocessing keeps of its own."""
    there = psutil.Process().children(recursive=True)
    return {each for each in there if "resource_tracker" not in " ".join(each.cmdline())}


def test_a_process_that_dies_is_an_error_with_a_remedy():
    with pytest.raises(WorkerError, match="a process died, often for want of memory"):
        list(map_parallel(die, range(4), 2))


def press_ctrl_c(program):
    os.killpg(program.pid, signal.SIGINT)


@pytest.mark.parametrize("end", [subprocess.Popen.kill, press_ctrl_c])
def test_processes_and_what_they_run_end_with_the_program(end, tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    program = tmp_path / "program.py"
    program.write_text(SLEEPING.format(folder=str(tmp_path)))
    with subprocess.Popen(
        [sys.executable, program], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert wait_for(lambda: len(list(tmp_path.glob("*.pid"))) == 6, within_s=60)
        end(running)
        _, error = running.communicate(timeout=60)
    assert error.count("Traceback") == (end is press_ctrl_c), error
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert wait_for(lambda: not any(map(is_running, pids)), within_s=60)
