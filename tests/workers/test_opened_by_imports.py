"""What the main script opens when it is imported is each worker's own, as under spawn."""

import json
import sys

import pytest

pytestmark = pytest.mark.ddp

PROGRAM = """
import json, os, sys
from lightning_shards.plan.place import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.fork_server import fork_server
from lightning_shards.workers.processes import ProcessPool
from unopened import Plain

OPENED
IMPORTED = os.getpid()

class Tells(Plain):
    def told(self):
        return [os.getpid(), os.getpid() == IMPORTED, USED]

def main():
    pool = ProcessPool(2, prefetch_factor=1)
    plain = pool.start(Plain(), Place(), Cursor())
    next(plain)
    server = fork_server._pid
    stream = pool.start(Tells(), Place(), Cursor())
    told = [next(stream).batch["told"] for _ in range(8)]
    for each in (plain, stream):
        each.close()
    print(json.dumps({"told": told, "is_same": server == fork_server._pid}))

if __name__ == "__main__":
    main()
"""

PLAIN = """
from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.collate import LoadedBatch

class Plain:
    def describe(self):
        return SourceDescription("telling", "sequential")

    def told(self):
        return []

    def batches(self, place, cursor, arena=None):
        while True:
            yield LoadedBatch({"told": self.told()})
"""


@pytest.fixture
def run(tmp_path, start_program):
    """Runs the program, whose script opens something; gives what it says."""

    def ran(opened, used):
        (tmp_path / "unopened.py").write_text(PLAIN)
        script = tmp_path / "script.py"
        script.write_text(PROGRAM.replace("OPENED", opened).replace("USED", used))
        with start_program([sys.executable, str(script)], tmp_path) as program:
            output, _ = program.communicate(timeout=240)
        assert program.returncode == 0, output
        return json.loads(output.splitlines()[-1])

    return ran


def test_what_the_main_script_opens_is_each_workers_own(run):
    told = run("F = open(__file__, 'rb', buffering=0)", "(F.tell(), F.read(1))[0]")
    for worker in (0, 1):
        of_worker = told["told"][worker::2]
        assert all(imported_here for _, imported_here, _ in of_worker)
        assert [value for *_, value in of_worker] == [0, 1, 2, 3]
    assert told["is_same"]
