"""What `system` guarantees, in the names of its tests.

Nothing that a trainer started outlives it, at whatever moment it is killed.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack

import psutil
import pytest
from waiting import is_running, wait_for

pytestmark = [pytest.mark.ddp, pytest.mark.slow]

OWNER = """
import os
import sys
import time

def stall(moment):
    if sys.argv[2] == moment:
        os.write(1, f"stands at {moment}\\n".encode())  # whole, as two workers say it at a time
        time.sleep(120)

if __name__ == "__mp_main__":  # in a worker that imports this script
    stall("main")

class Transform:  # whose unpickling runs code of the user's
    deterministic = True

    def __call__(self, label):
        stall("sample")
        return label

    def __reduce__(self):
        return unpickled, ()

def unpickled():
    stall("source")
    return Transform()

def main():
    from lightning_shards.samples.fields import Field
    from lightning_shards.plan.epoch import EpochSchedule
    from lightning_shards.readers.recipe import Recipe
    from lightning_shards.readers.stream import StreamSource
    from lightning_shards.plan.place import Cursor
    from lightning_shards.shards.index import ShardIndex
    from lightning_shards.plan.place import Place
    from lightning_shards.workers.processes import ProcessPool

    url, moment, start_method = sys.argv[1:]
    recipe = Recipe((Field("label", ("cls",)),), {"label": Transform()})
    source = StreamSource(
        index=ShardIndex((url,), None), epochs=EpochSchedule(100, 2, "drop"), seed=0,
        sampling="resampled", recipes=(recipe,),
    )
    print("starts", flush=True)
    stream = ProcessPool(2, start_method=start_method).start(source, Place(), Cursor())
    print("has started", flush=True)
    next(stream)
    print("has a batch", flush=True)
    time.sleep(120)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def start_owner(tmp_path, pack_shards, forked_programs):
    """Starts a script that owns workers, in a session and with a temporary folder of its own."""
    (url,) = pack_shards([9])
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    with ExitStack() as stack:
        # sockets need a short path, and one of the fork server stays
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="g"))

        def start(*arguments, url=url):
            command, environment = [script, url, *arguments], {"TMPDIR": temporary}
            started = forked_programs.started(command, tmp_path, environment=environment)
            return stack.enter_context(started)

        yield start


def members(session):
    """The processes that are left of a session."""
    left = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return left


def left_after_kill(owner, seconds):
    """What is left of an owner that is killed, and of its processes, so many seconds later."""
    os.kill(owner.pids[0], signal.SIGKILL)
    deadline = time.monotonic() + seconds
    while (left := members(owner.pids[0])) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.1)
    return left


def read_until(owner, start):
    with os.fdopen(owner.output, closefd=False) as output:
        for line in output:
            if line.startswith(start):
                return
    pytest.fail(f"the owner never said {start!r}")


@pytest.mark.parametrize(
    ("moment", "start_method", "said", "seconds"),
    [
        # workers stand in code of the user's
        ("main", "spawn", "stands at main", 10),
        ("source", "forkserver", "stands at source", 10),
        ("sample", "fork", "stands at sample", 10),
        ("none", "forkserver", "has started", 30),  # and were asked for nothing
        # and wait for their owner
        ("none", "spawn", "has a batch", 10),
        ("none", "fork", "has a batch", 10),
    ],
)
def test_no_process_outlives_a_killed_owner(moment, start_method, said, seconds, start_owner):
    owner = start_owner(moment, start_method)
    read_until(owner, said)
    assert left_after_kill(owner, seconds) == []


def test_a_fork_server_that_loads_modules_outlives_its_owner_no_longer_than_that(start_owner):
    owner = start_owner("none", "forkserver")
    read_until(owner, "starts")
    while len(members(owner.pids[0])) < 3:  # the owner, the tracker of names, the fork server
        assert is_running(owner.pids[0])
    assert left_after_kill(owner, 60) == []


def test_no_program_of_a_pipe_outlives_the_owner(start_owner):
    owner = start_owner("none", "fork", url="pipe:sleep 1000")

    def is_reading():
        return [process.name() for process in members(owner.pids[0])].count("sleep") == 2

    assert wait_for(is_reading, within_s=60)
    assert left_after_kill(owner, 10) == []


WITHOUT_PIDFD = """
import os, sys, time
from lightning_shards.system.guard import end_with

def refuse(pid):
    raise OSError(38, "Function not implemented")

os.pidfd_open = refuse
end_with(int(sys.argv[1]))
print("is guarded", flush=True)
time.sleep(120)
"""


def test_the_guard_needs_no_pidfd():
    """Linux has it since 5.3; Python says only what it was built with."""
    owner = subprocess.Popen(["sleep", "120"])
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_PIDFD, str(owner.pid)], stdout=subprocess.PIPE
    ) as guarded:
        assert guarded.stdout.readline() == b"is guarded\n"
        owner.kill()
        owner.wait()
        assert guarded.wait(30) == -signal.SIGKILL
