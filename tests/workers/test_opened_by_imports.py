"""What the main script opens when it is imported is each worker's own, as under spawn."""

import json
import sys
import threading

import pytest

from lightning_shards.system.open_handles import open_handles

pytestmark = pytest.mark.ddp

PROGRAM = """
import json, os, sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from lightning_shards.plan.cursor import Cursor
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
    for _ in range(8):
        next(plain)
    workers = plain._workers
    again = pool.start(Plain(), Place(), Cursor())
    next(again)
    for each in (plain, stream, again):
        each.close()
    codes = [worker.exitcode for worker in workers]
    print(json.dumps({"told": told, "codes": codes, "is_same": server == fork_server._pid}))

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


@pytest.mark.parametrize(
    ("opened", "used", "expected"),
    [
        ("F = open(__file__, 'rb', buffering=0)", "(F.tell(), F.read(1))[0]", [0, 1, 2, 3]),
        (
            "import socket; A, B = socket.socketpair(); A.send(bytes(range(99)))",
            "B.recv(1)[0]",
            [0, 1, 2, 3],
        ),
        (
            "P = ThreadPoolExecutor(1); P.submit(int).result()",
            "all(thread.is_alive() for thread in P._threads)",
            [True] * 4,
        ),
    ],
    ids=["file", "socket", "threads"],
)
def test_what_the_main_script_opens_is_each_workers_own(opened, used, expected, run):
    told = run(opened, used)
    for worker in (0, 1):
        of_worker = told["told"][worker::2]
        assert all(imported_here for _, imported_here, _ in of_worker)
        assert [value for *_, value in of_worker] == expected
    assert told["codes"] == [0, 0]  # of workers that ran when the server began anew
    assert told["is_same"]


def test_a_main_script_that_opens_nothing_is_imported_once(run):
    told = run("LOG = open('log.txt', 'w')", "0")
    assert not any(imported_here for _, imported_here, _ in told["told"])
    assert told["codes"] == [0, 0]


def test_files_to_read_and_threads_are_found(tmp_path):
    before = open_handles()
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    with open(tmp_path / "a", "w"), open(tmp_path / "a", "rb") as file:  # noqa: PTH123
        thread.start()
        assert {key[0] for key in open_handles() - before} == {file.fileno(), thread.ident}
    over.set()
    thread.join()
    assert open_handles() == before
