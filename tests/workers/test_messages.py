"""Batches on their way between processes: what comes is what was sent, in memory that both use."""

import multiprocessing
from collections import OrderedDict
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import pytest
import torch

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.collate import BadSample, LoadedBatch
from lightning_shards.samples.generators import are_same
from lightning_shards.workers.connection import TrainerEnd, WorkerEnd, new_buffers
from lightning_shards.workers.messages import (
    KEPT_BYTES,
    batch_bytes,
    pinned,
    require_picklable,
)
from lightning_shards.workers.pool import Failure

pytestmark = pytest.mark.filterwarnings("ignore:.*(nested|[Ss]parse|quant|deprecated).*")

SMALL = torch.arange(6, dtype=torch.int16).reshape(2, 3)
LARGE = torch.zeros(KEPT_BYTES, dtype=torch.uint8)
BATCH = {"__key__": ["a", "b"], "small": SMALL, "large": LARGE, "array": SMALL.numpy()}


class Pair(NamedTuple):
    """A batch of the user's own class."""

    image: object
    label: object


class Link:
    """Both ends of the connection of a worker that may have so many messages on their way."""

    def __init__(self, credit=1):
        near, far = multiprocessing.Pipe()
        self.buffers = new_buffers(credit)
        self.trainer, self.worker = TrainerEnd(near, self.buffers), WorkerEnd(far, self.buffers)

    def send(self, *items):
        """Send a message of batches, or of what else it may hold."""
        self.worker.begin(len(items))
        self.worker.send([item if isinstance(item, tuple) else LoadedBatch(item) for item in items])

    def travelled(self, *batches):
        """The batches of a message as the trainer gets them."""
        self.send(*map(LoadedBatch, batches))
        return [loaded.batch for loaded in self.trainer.receive()]

    def in_use(self):
        """For each buffer, whether it is in use."""
        return [bool(buffer.flags[0]) for buffer in self.buffers]


def column(value, size=KEPT_BYTES):
    return torch.full((size,), value, dtype=torch.uint8)


@pytest.mark.parametrize(
    "batch",
    [BATCH, tuple(BATCH.values()), OrderedDict(BATCH), Pair([], SMALL)],
    ids=["dict", "tuple", "a class of dicts", "named"],
)
def test_a_message_gives_what_was_put_in(batch):
    link, bad = Link(), (BadSample(0, 1, "SampleError"),)
    sent = [
        LoadedBatch(deepcopy(batch), digest, bad, seconds=digest / 2) for digest in (2**64 - 1, 3)
    ]
    link.send(*sent, Failure(ValueError("no"), "why"))
    *received, failure = link.trainer.receive()
    assert failure.cause == "why"
    for each, original in zip(received, sent, strict=True):
        assert each[1:] == original[1:]
        assert type(each.batch) is type(batch)
        assert are_same(each.batch, batch)
        columns = each.batch.values() if isinstance(batch, dict) else each.batch
        for column in list(columns)[1:]:
            column[:] = 1  # what warns when it is written to would be a surprise


@pytest.mark.parametrize("times", [1, KEPT_BYTES])
@pytest.mark.parametrize(
    "column",
    [
        torch.tensor([1.5, -2]).bfloat16(),
        torch.tensor([[1, 0], [0, 1]], dtype=torch.bool),
        torch.tensor(7),
        torch.empty(0, 3, dtype=torch.float8_e4m3fn),
        torch.tensor([1 + 2j, 3]),
        torch.tensor([1.0, 2.0], requires_grad=True),
        torch.arange(12).reshape(3, 4).T[1:],
        torch._neg_view(torch.arange(4.0)),
    ],
    ids=lambda column: f"{column.dtype}{list(column.shape)}",
)
def test_tensors_of_every_type_and_shape_come_back(column, times):
    if column.dim() and not column.requires_grad:
        column = column.repeat(times, *[1] * (column.dim() - 1))
    nested = [{"boxes": column, "tags": ("a", [column])}] * 2
    (received,) = Link().travelled({"x": column, "targets": nested})
    x, targets = received["x"], received["targets"]
    for each in (x, targets[1]["boxes"], targets[0]["tags"][1][0]):
        assert (each.dtype, each.shape) == (column.dtype, column.shape)
        assert (each.requires_grad, each.is_leaf) == (column.requires_grad, True)
        assert each.tolist() == column.tolist()


@pytest.mark.parametrize("scale", [1, 10], ids=["inside", "in shared memory"])
def test_a_column_keeps_its_memory_order(scale):
    planes = np.arange(2 * 3 * 4 * 5 * scale**3, dtype=np.float32)
    planes = planes.reshape(2, 3 * scale, 4 * scale, 5 * scale)
    channels_last = np.ascontiguousarray(planes.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    columns = {
        "array": channels_last,
        "tensor": torch.from_numpy(channels_last.copy(order="K")),
        "rolled": planes.transpose(2, 0, 3, 1),  # its own inverse it is not
        "part": planes[:, :, 1:3],
        "scalar": np.array(7, dtype=np.int64),
        "none": np.empty((0, 3), np.float16),
        "texts": np.array(["a", "bc"]),
        "objects": np.array([{"a": 1}, None]),
    }
    (received,) = Link().travelled(columns)
    for name, column in columns.items():
        got = received[name]
        assert type(got) is type(column)
        assert (got.dtype, got.shape) == (column.dtype, column.shape)
        assert got.tolist() == column.tolist()
    for name in ("array", "rolled"):
        assert received[name].strides == columns[name].strides
        assert received[name].flags.writeable
    assert received["tensor"].stride() == columns["tensor"].stride()
    assert received["part"].flags.c_contiguous


# --- values of any class --------------------------------------------------------------------------


class Boxes(torch.Tensor):
    """A tensor with an attribute, as those of torchvision are."""

    canvas = None

    def __reduce_ex__(self, protocol):
        return boxes_of, (self.tolist(), self.canvas)


def boxes_of(rows, canvas):
    boxes = torch.tensor(rows).as_subclass(Boxes)
    boxes.canvas = canvas
    return boxes


OF_OTHER_CLASSES = {
    "a tensor of a class of its own": boxes_of([[1.0, 2.0]], (10, 20)),
    "a dict in order": OrderedDict(b=SMALL, a=1),
    "named": Pair(SMALL, [SMALL]),
}


@pytest.mark.parametrize("name", OF_OTHER_CLASSES)
def test_a_value_of_any_class_comes_back_as_it_is(name):
    """Otherwise a batch from worker processes would differ from one of the other pools."""
    value = OF_OTHER_CLASSES[name]
    sent = {"itself": value, "deep": {"in": (1, [value])}}
    (received,) = Link().travelled(sent)
    assert are_same(received, sent)
    for back in (received["itself"], received["deep"]["in"][1][0]):
        assert getattr(back, "__dict__", {}) == getattr(value, "__dict__", {})


def test_a_tensor_that_is_no_block_of_numbers_travels_as_it_is():
    sparse = torch.eye(3).to_sparse()
    (received,) = Link().travelled({"itself": sparse, "deep": {"in": (1, [sparse])}})
    for back in (received["itself"], received["deep"]["in"][1][0]):
        assert back.layout is torch.sparse_coo
        assert torch.equal(back.to_dense(), torch.eye(3))


def test_a_tensor_that_gradients_flow_through_stays_in_its_process():
    batch = {"__key__": ["k"], "x": [torch.ones(2, requires_grad=True) * 2]}
    with pytest.raises(ConfigError, match=r"^field 'x' cannot travel .*call detach\(\) on it"):
        batch_bytes(batch, 2)
    with pytest.raises(SampleError, match=r"^field 'x' of sample 'k' cannot travel .*detach"):
        require_picklable(batch)


# --- pinned memory --------------------------------------------------------------------------------


def test_all_tensors_of_a_nested_batch_are_pinned(monkeypatch):
    """`Tensor.pin_memory` needs a GPU: here it makes copies, by which pinned tensors are known."""
    made = []

    def pin_memory(tensor):
        made.append(tensor.clone())
        return made[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    batch = {"__key__": ["a"], "array": SMALL.numpy(), "deep": [{"mask": SMALL > 2}, SMALL.numpy()]}
    received = pinned(LoadedBatch(batch)).batch
    assert [received["array"], received["deep"][0]["mask"]] == made
    assert are_same(received, {**batch, "array": SMALL})


# --- shared memory --------------------------------------------------------------------------------


def test_content_of_any_size_arrives_while_nobody_reads():
    link = Link(2)
    sizes = [0, 1, 100, 3, 2**20, 2**21, 2**14, 2**22]
    for first in range(0, len(sizes), 2):
        pair = [{"text": bytes([7]) * size, "x": column(7, size)} for size in sizes[first:][:2]]
        for each in pair:
            link.send(each)
        for sent in pair:
            (received,) = link.trainer.receive()
            assert are_same(received.batch, sent)
            del received


def test_a_worker_ends_when_the_trainer_has_closed_the_stream():
    """It listens in a wait, or when nobody takes its message."""
    link = Link()
    link.trainer.close()
    link.send({"late": 1})
    with pytest.raises(SystemExit):
        link.worker.raise_if_closed()


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
