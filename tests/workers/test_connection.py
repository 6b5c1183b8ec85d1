"""The connection of a worker: its words, and the shared memory that both ends use."""

import multiprocessing

import numpy as np
import pytest
import torch

from lightning_shards.samples.collate import GrowingColumn
from lightning_shards.workers.messages import KEPT_BYTES
from tests.workers.message_examples import Link

CREDIT = 2


def column(value, size=KEPT_BYTES):
    return torch.full((size,), value, dtype=torch.uint8)


def test_content_of_any_size_arrives_while_nobody_reads():
    link = Link(CREDIT)
    sizes = [0, 1, 100, 2**12, 2**12 + 1, 3, 2**20, 2**21, 2**14, 2**22]
    for first in range(0, len(sizes), CREDIT):
        pair = [[bytes([size % 251]) * size, column(7, size)] for size in sizes[first:][:CREDIT]]
        for each in pair:
            link.send(each)
        for sent in pair:
            (received,) = link.trainer.receive()
            assert received.batch[0] == sent[0]
            assert torch.equal(received.batch[1], sent[1])
            del received


def test_a_worker_ends_when_the_trainer_has_closed_the_stream():
    """It listens in a wait, or when nobody takes its message."""
    link = Link(CREDIT)
    link.trainer.close()
    link.worker.send(b"late")
    with pytest.raises(SystemExit):
        link.worker.raise_if_closed()


# --- shared memory --------------------------------------------------------------------------------


def test_a_buffer_is_in_use_as_long_as_the_trainer_holds_a_large_tensor_of_it():
    link = Link()
    batches = link.travelled(*({"x": column(value), "ids": column(1, 6)} for value in range(9)))
    assert link.in_use() == [True, False, False]
    for value, batch in enumerate(batches):
        assert torch.equal(batch["x"], column(value))
    row, small = batches[4]["x"][100:], batches[5]["ids"]
    row.add_(1)
    del batches, batch
    assert link.in_use() == [True, False, False]
    assert int(row.max()) == 5
    del row
    assert link.in_use() == [False, False, False]
    assert torch.equal(small, column(1, 6))  # it keeps no memory of the message


def test_a_fork_of_the_trainer_releases_no_buffer():
    link = Link()
    (batch,) = link.travelled({"x": column(1)})
    fork = multiprocessing.get_context("fork").Process(target=batch.clear)
    fork.start()
    fork.join(60)
    assert fork.exitcode == 0
    assert link.in_use() == [True, False, False]
    batch.clear()
    assert link.in_use() == [False, False, False]


def growing(values, arena=None):
    made = GrowingColumn(len(values), arena)
    return made.finished([{"x": made.put(value), "__key__": ""} for value in values], "x")


def test_arrays_that_fit_no_tensor_are_not_left_in_a_buffer_that_is_used_again():
    def batch(value, last):
        arrays = [np.full(KEPT_BYTES, each, np.uint8) for each in (value, value, last) if each]
        return {"x": growing(arrays if last else [*arrays, None], link.maker.arena)}

    link = Link(3)
    link.travelled(batch(1, 1))
    link.maker.prepare(1)
    link.send(batch(2, None))
    for value in (8, 9):
        link.maker.prepare(1)
        link.send(batch(value, value))
    (received,) = link.trainer.receive()
    first, second, third = received.batch["x"]
    assert (set(first.tolist()), set(second.tolist()), third) == ({2}, {2}, None)
