"""Worker processes, and the programs that they run, end with the process that owns them."""

import subprocess
import sys

import psutil
import pytest
from waiting import is_alive, wait_for

pytestmark = pytest.mark.ddp

OWNER = """
import sys
from lightning_shards.samples.fields import Field
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.readers.recipe import Recipe
from lightning_shards.readers.stream import StreamSource
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.place import Cursor
from lightning_shards.shards.index import ShardIndex
from lightning_shards.plan.place import Place
from lightning_shards.workers.processes import ProcessPool

def main():
    url, start_method, num_workers = sys.argv[1:]
    source = StreamSource(
        index=ShardIndex((url,), None), epochs=EpochSchedule(100, 2, "drop"), seed=0,
        sampling="resampled", recipes=(Recipe((Field("label", ("cls",)),)),),
    )
    pool = ProcessPool(int(num_workers), start_method=start_method)
    stream = pool.start(source, Place(), Cursor())
    next(stream)
    print("has a batch", flush=True)
    input()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def start_owner(tmp_path, request):
    """Starts a script that owns workers; the script does not outlive the test."""

    def start(url, start_method, num_workers):
        script = tmp_path / "owner.py"
        script.write_text(OWNER)
        owner = subprocess.Popen(
            [sys.executable, script, url, start_method, str(num_workers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        request.addfinalizer(lambda: end(owner))
        return owner

    def end(owner):
        owner.kill()
        owner.stdin.close()
        owner.stdout.close()
        owner.wait()

    return start


def kill(owner):
    owner.kill()


def descendants_left(owner, end):
    """The processes below the owner, and those of them alive five seconds after its end."""
    descendants = psutil.Process(owner.pid).children(recursive=True)
    names = sorted(process.name() for process in descendants)
    end(owner)
    owner.wait(timeout=30)
    _, left = psutil.wait_procs(descendants, timeout=5)
    alive = [process for process in left if is_alive(process)]
    for process in alive:
        process.kill()
    return names, alive


@pytest.mark.slow
def test_no_program_of_a_pipe_outlives_the_owner(start_owner):
    owner = start_owner("pipe:sleep 1000", "fork", 2)

    def names_now():
        return [child.name() for child in psutil.Process(owner.pid).children(recursive=True)]

    assert wait_for(lambda: names_now().count("sleep") == 2, within_s=60)
    names, alive = descendants_left(owner, kill)
    assert names.count("sleep") == 2
    assert alive == []
