"""The fork server: one for all streams of a process, and what its workers find."""

import multiprocessing
import os
import signal
import sys
from itertools import count
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import get_worker_info

from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.generators import worker_seed
from lightning_shards.workers.fork_server import fork_server
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.worker_imports import prepare_workers

pytestmark = pytest.mark.ddp


def environment():
    return "A" in os.environ, os.environ.get("B")


class Tells:
    """A source whose batches say what a worker finds."""

    def __init__(self, held=None):
        self.held, self.unpickled_in = held, None

    def __setstate__(self, state):
        vars(self).update(state, unpickled_in=environment())

    def describe(self):
        return SourceDescription("telling", "sequential")

    def batches(self, place, cursor, arena=None):
        for number in count(place.worker, place.num_workers):
            info = get_worker_info()
            told = {
                "worker": [info.id, info.num_workers, info.seed, type(info.dataset) is Tells],
                "threads": torch.get_num_threads(),
                "drawn": float(np.random.random()),  # noqa: NPY002
                "main": getattr(sys.modules["__main__"], "__file__", None),
                "parent": multiprocessing.parent_process().pid,
                "type": torch.ones(1).dtype,
                "environments": [self.unpickled_in, environment()],
            }
            yield LoadedBatch({"told": [told], "number": torch.tensor(number)})


def told_by(stream, num_batches=2):
    return [next(stream).batch["told"][0] for _ in range(num_batches)]


@pytest.fixture
def server_pid():
    """Gives the process id of the fork server, which ends with the test."""
    yield lambda: fork_server.pid
    fork_server.end_unused()


def drawn_by_torchs_worker(worker):
    seed = worker_seed(0)
    words = torch.utils.data._utils.worker._generate_state(seed, worker)
    return float(np.random.RandomState(np.array(words, dtype=np.uint32)).random_sample())


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
def test_a_worker_finds_what_one_of_torch_would(start_method, start, server_pid, float64):
    is_forked = start_method == "fork"
    main = getattr(sys.modules["__main__"], "__file__", None) if is_forked else None
    told = told_by(start(ProcessPool(2, start_method=start_method), Tells()))
    for worker in (0, 1):
        assert told[worker] == {
            "worker": [worker, 2, worker_seed(worker), True],
            "threads": 1,
            "drawn": drawn_by_torchs_worker(worker),
            "main": main,
            "parent": os.getpid(),
            "type": torch.float64,  # the default type in the trainer
            "environments": [None if is_forked else environment(), environment()],
        }
    assert get_worker_info() is None


def test_streams_share_a_server_that_ends_when_none_uses_it(start, server_pid):
    streams = [start(ProcessPool(1), Tells()) for _ in range(2)]
    server = psutil.Process(server_pid())
    for stream in streams:
        told_by(stream, 1)
        assert {worker.pid for worker in stream._workers} <= {
            child.pid for child in server.children()
        }
    streams[0].close()
    fork_server.end_unused()
    assert server.is_running()
    told_by(streams[1], 5)
    streams[1].close()
    fork_server.end_unused()
    assert not server.is_running()


def test_a_server_that_was_killed_is_started_again(start, server_pid):
    start(ProcessPool(1), Tells()).close()
    killed = server_pid()
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    told_by(start(ProcessPool(1), Tells()))
    assert server_pid() != killed


def test_a_server_that_is_prepared_is_the_one_that_forks_and_runs_nothing_of_the_users(
    start, server_pid
):
    fork_server.end_unused()
    prepare_workers([Tells()])
    prepared = server_pid()
    assert {"numpy", "torch", "lightning_shards.workers.worker"} <= set(
        forkserver._forkserver._preload_modules
    )
    assert not {__name__, "__main__"} & set(forkserver._forkserver._preload_modules)
    told_by(start(ProcessPool(1), Tells()), 1)
    assert server_pid() == prepared


def test_workers_find_the_environment_of_their_start(start, server_pid, monkeypatch):
    for a, b in ((True, "1"), (False, "2")):
        monkeypatch.setenv("B", b)
        monkeypatch.setenv("A", "") if a else monkeypatch.delenv("A", raising=False)
        stream = start(ProcessPool(1), Tells())
        assert told_by(stream, 1)[0]["environments"] == [(a, b), (a, b)]
        stream.close()


def test_the_server_finds_modules_where_the_trainer_does(start, server_pid, monkeypatch, tmp_path):
    """Another version of this package may be installed; workers would be forked with it."""
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    before = os.environ.copy()
    fork_server.end_unused()
    fork_server.start(["only_here"])
    told_by(start(ProcessPool(1), Tells()), 1)
    assert os.environ.copy() == before
    environment = Path(f"/proc/{server_pid()}/environ").read_bytes()
    assert b"PYTHONPATH=" + os.fsencode(tmp_path) in environment
