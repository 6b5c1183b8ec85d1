"""Batches on their way between processes."""

import os

import numpy as np
import pytest
import torch

from lightning_shards.samples.collate import BadSample, GrowingColumn, LoadedBatch
from lightning_shards.samples.tensors import new_tensor
from lightning_shards.workers.connection import ReceivedBuffers, SharedBuffer, SharedBuffers
from lightning_shards.workers.messages import SHARED_BYTES, MessageMaker, PickledMessage
from tests.workers.message_examples import BATCH, LARGE, SMALL, message_of, travelled, unpacked


def made_in(arena, size, value):
    return new_tensor((size,), torch.uint8, arena).fill_(value)


@pytest.mark.parametrize("batch", [BATCH, tuple(BATCH.values())], ids=["dict", "tuple"])
def test_a_message_gives_what_was_put_in(batch):
    bad = (BadSample(0, 1, "SampleError"),)
    sent = [LoadedBatch(batch, digest, bad, seconds=digest / 2) for digest in (2**64 - 1, 3)]
    received = list(unpacked(travelled(MessageMaker(SharedBuffers(1)).message(sent))))
    assert [each.seconds for each in received] == [each.seconds for each in sent]
    for each, original in zip(received, sent, strict=True):
        assert each[1:] == original[1:]
        assert type(each.batch) is type(batch)
        columns = each.batch.values() if type(batch) is dict else each.batch
        keys, small, large, array = columns
        assert keys == ["a", "b"]
        assert small.dtype == SMALL.dtype
        assert torch.equal(small, SMALL)
        assert torch.equal(large, LARGE)
        assert array.tolist() == SMALL.tolist()  # the user's own array stays one
        assert not torch.is_tensor(array)
        small.add_(1)  # a tensor that warns when it is written to would be a surprise


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
def test_tensors_of_every_type_and_shape_come_back(column):
    nested = [{"boxes": column, "tags": ("a", [column])}] * 2
    sent = message_of({"x": column, "targets": nested})
    assert b"rebuild" not in sent.pickled().content  # torch's own way, which copies it twice
    (received,) = unpacked(travelled(sent))
    for each in (
        received.batch["x"],
        received.batch["targets"][1]["boxes"],
        received.batch["targets"][0]["tags"][1][0],
    ):
        assert (each.dtype, each.shape) == (column.dtype, column.shape)
        assert (each.requires_grad, each.is_leaf) == (column.requires_grad, True)
        assert each.tolist() == column.tolist()
    assert received.batch["targets"][0]["tags"][0] == "a"


@pytest.mark.parametrize("copy", [False, True])
def test_a_column_keeps_its_memory_order(copy):
    planes = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
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
    (received,) = unpacked(travelled(message_of(columns)), copy=copy)
    for name, column in columns.items():
        got = received.batch[name]
        assert type(got) is type(column)
        assert (got.dtype, got.shape) == (column.dtype, column.shape)
        assert got.tolist() == column.tolist()
    for name in ("array", "rolled"):
        assert received.batch[name].strides == columns[name].strides
    assert received.batch["tensor"].stride() == columns["tensor"].stride()
    assert received.batch["part"].flags.c_contiguous
    assert received.batch["array"].flags.writeable


COLUMNS = [torch.full((SHARED_BYTES // 8 + odd,), odd, dtype=torch.uint8) for odd in range(9)]


def test_half_a_megabyte_goes_through_shared_memory_and_comes_as_copies_if_asked_for():
    sent = message_of(*({"x": column} for column in COLUMNS))
    assert isinstance(sent.buffer, SharedBuffer)
    received = [each.batch["x"] for each in unpacked(sent, copy=True)]
    assert not sent.buffer.is_in_use  # nothing lies in it any more
    for column, original in zip(received, COLUMNS, strict=True):
        assert torch.equal(column, original)
        assert column.untyped_storage().nbytes() == len(original)
        column.add_(1)
    assert [int(column.max()) for column in received] == list(range(1, 10))
    assert not isinstance(message_of({"x": COLUMNS[0]}).buffer, SharedBuffer)


def test_a_buffer_is_in_use_as_long_as_the_trainer_holds_a_large_tensor_of_it():
    sent = message_of(*({"x": column, "ids": SMALL} for column in COLUMNS))
    assert sent.buffer.is_in_use
    batches = [each.batch for each in unpacked(sent, copy=False)]
    for batch, original in zip(batches, COLUMNS, strict=True):
        assert torch.equal(batch["x"], original)
        assert batch["ids"].untyped_storage().nbytes() == SMALL.nbytes  # no reason to keep it
    row, small = batches[4]["x"][100:], batches[5]["ids"]
    row.add_(1)
    del batches, batch
    assert sent.buffer.is_in_use
    assert int(row.max()) == 5
    del row
    assert not sent.buffer.is_in_use
    assert torch.equal(small, SMALL)


def test_a_message_that_ends_early_brings_what_there_is():
    maker = MessageMaker(SharedBuffers(1))
    list(unpacked(message_of(BATCH, maker=maker)))
    maker.prepare(16)
    made = made_in(maker.arena, SHARED_BYTES, 7)  # and another one fails
    sent = maker.message([LoadedBatch({"x": made})], "why")
    assert (sent.failure, type(sent.buffer)) == ("why", SharedBuffer)
    assert torch.equal(next(unpacked(sent)).batch["x"], made)
    assert list(unpacked(maker.message([], "why"))) == []
    assert made_in(maker.arena, 9, 0).data_ptr() not in range(
        sent.buffer.content.ctypes.data, sent.buffer.content.ctypes.data + len(sent.buffer.content)
    )


def growing(values, arena=None):
    column = GrowingColumn(len(values), arena)
    return column.finished([{"x": column.put(value), "__key__": ""} for value in values], "x")


def test_arrays_that_fit_no_tensor_are_not_left_in_a_buffer_that_is_used_again():
    def batch(value, last):
        arrays = [np.full(SHARED_BYTES, each, np.uint8) for each in (value, value, last) if each]
        return {"x": growing(arrays if last else [*arrays, None], maker.arena)}

    maker = MessageMaker(SharedBuffers(2))
    list(unpacked(message_of(batch(1, 1), maker=maker)))
    maker.prepare(1)
    listed = batch(2, None)
    early = message_of(listed, maker=maker)
    for value in (8, 9):
        maker.prepare(1)
        later = batch(value, value)
        message_of(later, maker=maker)
    (received,) = unpacked(travelled(early))
    first, second, third = received.batch["x"]
    assert (set(first.tolist()), set(second.tolist()), third) == ({2}, {2}, None)


def test_a_buffer_in_use_is_never_taken():
    buffers = SharedBuffers(2)
    first, second = buffers.take(100), buffers.take(100)
    third = buffers.take(100)
    assert len({each.content.ctypes.data for each in (first, second, third)}) == 3
    second.is_in_use = False
    assert buffers.take(64) is second


def test_a_message_brings_the_file_of_a_buffer_only_once():
    maker, there = MessageMaker(SharedBuffers(1)), ReceivedBuffers()
    larger = torch.zeros(2 * SHARED_BYTES, dtype=torch.uint8)
    brings_file = []
    for column in (LARGE, LARGE, larger, larger):  # a larger buffer has the same number
        sent = message_of({"x": column}, maker=maker)
        content, fd, _ = sent.pickled()
        brings_file.append(fd is not None)
        file = None if fd is None else os.dup(fd)
        (received,) = unpacked(PickledMessage(content, file).unpickled(there), copy=False)
        assert torch.equal(received.batch["x"], column)
        del received
        assert not sent.buffer.is_in_use
    assert brings_file == [True, False, True, False]


def test_a_buffer_for_want_of_a_free_one_travels_as_a_whole_each_time():
    maker = MessageMaker(SharedBuffers(1))
    message_of(BATCH, maker=maker)
    odd = message_of(BATCH, maker=maker)
    for _again in range(2):
        assert odd.pickled().fd == odd.buffer.fd
        (received,) = unpacked(travelled(odd))
        assert torch.equal(received.batch["large"], LARGE)
