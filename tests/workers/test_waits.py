"""A worker that stands still or dies is named; nobody waits for it without end."""

import os
import signal
import threading
from itertools import count
from multiprocessing.connection import wait
from multiprocessing.popen_fork import Popen

import psutil
import pytest
import torch

from lightning_shards.errors import WorkerError
from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.threads import ThreadPool


class Halts:
    """A source that does something at batch number 3, in the stage of transforms."""

    def __init__(self, halt):
        self.halt = halt

    def describe(self):
        return SourceDescription("halting", "sequential")

    def batches(self, place, cursor, arena=None):
        clock = StageClock()
        for number in count(place.worker, place.num_workers):
            with clock.on("transform"):
                if number == 3:
                    self.halt()
            yield LoadedBatch({"number": torch.tensor(number)})


def numbers(stream, num_batches):
    return [int(next(stream).batch["number"]) for _ in range(num_batches)]


def test_a_thread_that_gives_no_batch_is_an_error_that_shows_where_it_stands(start):
    over = threading.Event()
    with pytest.raises(WorkerError) as caught:
        numbers(start(ThreadPool(2, worker_timeout_s=0.5), Halts(lambda: over.wait(60))), 5)
    over.set()
    assert "worker 1 has given no batch for 0.5 s, the worker_timeout_s" in str(caught.value)
    assert "over.wait(60)" in str(caught.value)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.ddp
def test_a_process_that_stands_still_is_ended_and_named_with_its_stage(start):
    pool = ProcessPool(2, start_method="fork", worker_timeout_s=4)  # to start counts, too
    stream = start(pool, Halts(stop))
    processes = [psutil.Process(worker.pid) for worker in stream._workers]
    with pytest.raises(WorkerError) as caught:
        numbers(stream, 4)
    text = str(caught.value)
    assert "worker 1 has given no batch for 4 s" in text
    assert f"that its process {processes[1].pid} began last is 'transform'" in text
    assert "set a larger worker_timeout_s" in text
    assert psutil.wait_procs(processes, timeout=5)[1] == []


@pytest.mark.ddp
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_process_that_dies_is_an_error_where_it_is_waited_for(start_method, start):
    pool = ProcessPool(2, start_method=start_method, worker_timeout_s=0)
    stream = start(pool, Halts(os.getpid))
    assert numbers(stream, 1) == [0]
    victim = stream._workers[0]
    victim.kill()
    assert wait([victim.sentinel], timeout=30)
    with pytest.raises(WorkerError, match=rf"pid {victim.pid}: SIGKILL\).*out of memory"):
        numbers(stream, 9)


class Unloadable(Halts):
    def __setstate__(self, state):
        raise ImportError("its module fails here")


@pytest.mark.ddp
def test_a_worker_that_cannot_load_what_it_is_sent_is_an_error_that_says_so(start):
    with pytest.raises(WorkerError, match=r"exit status 1\).*fails where workers import it"):
        numbers(start(ProcessPool(1, worker_timeout_s=0), Unloadable(os.getpid)), 1)


@pytest.mark.ddp
def test_workers_that_cannot_all_be_started_are_an_error_and_leave_none(start, monkeypatch):
    launch, started = Popen._launch, []

    def launch_one(popen, process):
        if started:
            raise OSError(11, "Resource temporarily unavailable")
        launch(popen, process)
        started.append(psutil.Process(popen.pid))

    monkeypatch.setattr("multiprocessing.popen_fork.Popen._launch", launch_one)
    with pytest.raises(WorkerError, match=r"cannot be started .*Resource temp.*ulimit -u"):
        start(ProcessPool(2, start_method="fork"), Halts(os.getpid))
    assert psutil.wait_procs(started, timeout=10)[1] == []
