"""Trainers in processes of their own that share actors; minutes.

`pytest -m matrix tests/ray/test_sharing.py -s` prints how many batches the actors made.
"""

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from lightning_shards import Place
from tests.ray.actor_samples import hash_of, made_here, shared_loader
from tests.ray.local_clusters import NEEDS_RAY, ended_processes

pytestmark = [
    pytest.mark.matrix,
    NEEDS_RAY,
    pytest.mark.timeout(600),
    pytest.mark.ddp,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets and processes that Ray drops
]

BATCHES = 120
ROOT = Path(__file__).parents[2]

TRAINER = """
import sys
from itertools import islice
from pathlib import Path
from tests.ray.actor_samples import endless, hash_of, shared_loader
if __name__ == "__main__":
    folder, batches, held, *urls = sys.argv[1:]
    with shared_loader(Path(folder), urls) as loader:
        for number, batch in enumerate(islice(endless(loader), int(batches))):
            if number == int(held):
                input()
            print("batch", hash_of(batch), flush=True)
"""


@pytest.fixture
def urls(tmp_path, pack_into):
    return pack_into(tmp_path / "shards", [30, 40, 50])


@pytest.fixture
def environment():
    """In which trainers join a local cluster of two CPUs, which ends with the test."""
    from lightning_shards.workers.ray.cluster import Joining, cluster, ray

    with ended_processes():
        cluster.hold(Joining("local"), Place())
        try:
            address = ray.get_runtime_context().gcs_address
            yield os.environ | {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token"}
        finally:
            cluster.release()
            cluster.leave_unused()


@contextmanager
def trainer(folder, urls, held, environment):
    """A trainer that waits for a line before it takes batch number `held`."""
    command = [sys.executable, "-c", TRAINER, folder, str(BATCHES), str(held), *urls]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def batches_of(process, number):
    """The hashes of the next batches that a trainer says."""
    hashes = []
    while len(hashes) < number:
        line = process.stdout.readline()
        assert line, "the trainer has ended"
        hashes += line.split()[1:] if line.startswith("batch ") else []
    return hashes


def release(*processes):
    for process in processes:
        print(file=process.stdin, flush=True)


def newest_actor():
    processes = psutil.Process().children(recursive=True)
    actors = [each for each in processes if each.name().startswith("ray::BatchMaker")]
    return max(actors, key=psutil.Process.create_time)


def expected_in(folder, urls):
    with shared_loader(folder, urls) as loader:
        return list(map(hash_of, made_here(loader.source, 1, BATCHES)))


def test_a_late_trainer_and_the_deaths_of_an_actor_and_of_the_trainer_that_started_it(
    tmp_path, urls, environment
):
    with ExitStack() as stack:
        started, said = [], []
        for _ in range(3):  # each begins where the ones before it are in the middle
            started.append(stack.enter_context(trainer(tmp_path, urls, BATCHES // 2, environment)))
            said.append(batches_of(started[-1], BATCHES // 2))
        before = (tmp_path / "noted").stat().st_size
        started[0].kill()
        release(*started[1:])
        said[1] += batches_of(started[1], 10)  # by other actors; four batches had been on their way
        newest_actor().kill()
        for batches, process in zip(said[1:], started[1:], strict=True):
            batches.extend(batches_of(process, BATCHES - len(batches)))
            assert batches == expected_in(tmp_path, urls)
    made = (tmp_path / "noted").stat().st_size
    print(f"samples made: {before} for half of three trainers, {made} with the rest of two")
    assert made <= 1.5 * 2 * BATCHES  # what the dead ones had kept is made again
