"""A fork of the trainer keeps the batches that the trainer had, whatever becomes of them there."""

import multiprocessing
import os
from itertools import count

import pytest
import torch

from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.messages import SHARED_BYTES
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.shared_buffers import SharedBuffers, forks_of_workers
from tests.workers.message_examples import BATCH, message_of, unpacked


def fork_and_drop(batch):
    fork = multiprocessing.get_context("fork").Process(target=batch.clear)
    fork.start()
    fork.join(60)
    assert fork.exitcode == 0


def test_a_worker_that_is_forked_releases_no_buffer():
    sent = message_of(BATCH)
    (loaded,) = unpacked(sent, copy=False)
    with forks_of_workers():
        fork_and_drop(loaded.batch)
    assert sent.buffer.is_in_use
    loaded.batch.clear()
    assert not sent.buffer.is_in_use


def test_a_buffer_that_a_fork_may_use_is_given_up():
    sent, later = message_of(BATCH), message_of(BATCH)
    (loaded,) = unpacked(sent, copy=False)
    fork_and_drop(loaded.batch)
    loaded.batch.clear()
    assert sent.buffer.is_given_up
    (loaded,) = unpacked(later, copy=False)
    loaded.batch.clear()
    assert not later.buffer.is_in_use


def test_a_buffer_that_was_given_up_is_replaced_by_one_of_its_number():
    buffers = SharedBuffers(2)
    first, second = buffers.take(100), buffers.take(100)
    first.give_up()
    third = buffers.take(100)
    assert third.number == first.number
    assert third not in (first, second)
    assert first.is_given_up
    third.is_in_use = False
    assert buffers.take(100) is third


class Numbers:
    """A source of large batches, each filled with its number."""

    def describe(self):
        return SourceDescription("numbers", "sequential")

    def batches(self, place, cursor, arena=None):
        for number in count():
            yield LoadedBatch({"x": torch.full((SHARED_BYTES,), number % 200, dtype=torch.uint8)})


@pytest.mark.ddp
@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
def test_a_fork_of_the_trainer_finds_its_batch_whenever_it_looks(start_method, start):
    stream = start(ProcessPool(1, start_method=start_method), Numbers())
    for number in range(0, 60, 12):
        batch = next(stream).batch
        is_over, ready = multiprocessing.Pipe(duplex=False)
        found, told = multiprocessing.Pipe(duplex=False)
        if not (pid := os.fork()):
            is_over.recv()
            told.send(batch["x"].unique().tolist())
            os._exit(0)
        del batch
        for later in range(number + 1, number + 12):
            assert next(stream).batch["x"].unique().tolist() == [later]
        ready.send(True)
        assert found.recv() == [number]
        os.waitpid(pid, 0)


@pytest.mark.ddp
def test_starting_forked_workers_gives_no_buffer_up(start):
    sent = message_of(BATCH)
    (loaded,) = unpacked(sent, copy=False)
    next(start(ProcessPool(2, start_method="fork"), Numbers()))
    loaded.batch.clear()
    assert not sent.buffer.is_in_use
