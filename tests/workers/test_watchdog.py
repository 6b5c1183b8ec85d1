"""A worker that stands still or dies is named; nobody waits for it without end."""

import logging
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
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.threads import ThreadPool
from lightning_shards.workers.watchdog import Watchdog


class Halts:
    """A source that does something at batch number 3, in the stage of transforms."""

    def __init__(self, halt, payload=b""):
        self.halt, self.payload = halt, payload

    def describe(self):
        return SourceDescription("halting", "sequential")

    def batches(self, place, cursor, arena=None):
        clock = StageClock()
        for number in count(place.worker, place.num_workers):
            with clock.on("transform"):
                if number == 3:
                    self.halt()
            yield LoadedBatch({"payload": [self.payload], "number": torch.tensor(number)})


def numbers(stream, num_batches):
    return [int(next(stream).batch["number"]) for _ in range(num_batches)]


@pytest.mark.parametrize(
    "pool",
    [InlinePool(worker_timeout_s=0.1), ThreadPool(2, worker_timeout_s=0.1)],
    ids=["inline", "threads"],
)
def test_what_cannot_be_ended_is_shown_in_a_warning_and_waited_for(pool, start, monkeypatch):
    was_warned = threading.Event()
    warnings = []

    class Told(logging.Handler):
        def emit(self, record):
            warnings.append(record.getMessage())
            was_warned.set()

    monkeypatch.setattr("lightning_shards.workers.watchdog._log.handlers", [Told()])

    def halt_until_warned():
        assert was_warned.wait(timeout=60)

    assert numbers(start(pool, Halts(halt_until_warned)), 5) == list(range(5))
    assert "a batch is waited for since 0.1 s (LoaderConfig.worker_timeout_s)" in warnings[0]
    assert "in halt_until_warned" in warnings[0]


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
    assert f"worker process 1 (pid {processes[1].pid}) has given no batch for 4 s" in text
    assert "it was stopped by a signal, and the stage that it began last is 'transform'" in text
    assert "set a larger worker_timeout_s" in text
    assert psutil.wait_procs(processes, timeout=5)[1] == []


@pytest.mark.ddp
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_process_that_dies_in_the_middle_of_a_message_is_an_error_where_it_is_waited_for(
    start_method, start
):
    """Its message is larger than a socket can hold."""
    pool = ProcessPool(2, start_method=start_method, worker_timeout_s=0)
    stream = start(pool, Halts(os.getpid, payload=bytes(2**22)))
    assert numbers(stream, 1) == [0]
    victim = stream._workers[0]
    victim.kill()
    assert wait([victim.sentinel], timeout=30)
    with pytest.raises(WorkerError, match=rf"ended without being .*pid {victim.pid}: SIGKILL\)"):
        numbers(stream, 9)


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


# --- the watchdog itself --------------------------------------------------------------------------


@pytest.fixture
def late():
    return []


@pytest.fixture
def watchdog(late, monkeypatch):
    """One of eight looks, that are made by hand."""
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    return Watchdog(8, lambda waited_s, waiter: late.append((waited_s, waiter)))


def look(watchdog, times):
    for _ in range(times):
        watchdog.look()


def test_waits_are_not_added_up_and_time_between_them_is_none(watchdog, late):
    for _ in range(3):
        with watchdog:
            look(watchdog, 8)
        look(watchdog, 20)
    assert late == []
    with watchdog:
        look(watchdog, 9)
    assert late == [(8, threading.get_ident())]
