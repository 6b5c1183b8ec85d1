"""Batches on their way between processes."""

import multiprocessing
import os
import pickle
from itertools import islice
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

from lightning_shards.errors import ConfigError
from lightning_shards.samples.arena import new_tensor
from lightning_shards.samples.collate import BadSample, GrowingColumn, LoadedBatch
from lightning_shards.workers.messages import (
    SHARED_BYTES,
    BatchBytes,
    MessageMaker,
    batch_bytes,
    message_sizes,
    tensor_bytes,
)
from lightning_shards.workers.processes import ProcessPool, require_shared_memory
from lightning_shards.workers.shared_buffers import SharedBuffer, SharedBuffers, forget_buffers

SMALL = torch.arange(6, dtype=torch.int16).reshape(2, 3)
LARGE = torch.zeros(SHARED_BYTES, dtype=torch.uint8)
BATCH = {"__key__": ["a", "b"], "small": SMALL, "large": LARGE, "array": SMALL.numpy()}


def message_of(*batches, maker=None):
    return (maker or MessageMaker(1)).message([LoadedBatch(batch) for batch in batches])


def made_in(arena, size, value):
    return new_tensor((size,), torch.uint8, arena).fill_(value)


def unpacked(message, **options):
    return message.unpack(message.lease(), **options)


@pytest.mark.parametrize("batch", [BATCH, tuple(BATCH.values())], ids=["dict", "tuple"])
def test_a_message_gives_what_was_put_in(batch):
    bad = (BadSample(0, 1, "SampleError"),)
    sent = [LoadedBatch(batch, digest, bad, seconds=digest / 2) for digest in (2**64 - 1, 3)]
    received = list(unpacked(pickle.loads(ForkingPickler.dumps(MessageMaker(1).message(sent)))))
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
    assert b"rebuild" not in pickle.dumps(sent)  # torch's own way, which opens a file for each
    (received,) = unpacked(pickle.loads(pickle.dumps(sent)))
    for each in (
        received.batch["x"],
        received.batch["targets"][1]["boxes"],
        received.batch["targets"][0]["tags"][1][0],
    ):
        assert (each.dtype, each.shape) == (column.dtype, column.shape)
        assert each.tolist() == column.tolist()
    assert received.batch["targets"][0]["tags"][0] == "a"


def test_a_message_is_pinned_as_a_whole(monkeypatch):
    pinned = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda self: pinned.append(self.clone()) or pinned[-1]
    )
    sent = message_of(BATCH, BATCH)
    buffer = sent.buffer
    message = sent.pin_memory()
    assert not buffer.is_in_use  # free for the next message
    assert [tuple(each.shape) for each in pinned] == [(2, 3), (SHARED_BYTES,)] * 2
    assert torch.equal(list(unpacked(message))[1].batch["small"], SMALL)


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


def test_a_forked_process_releases_no_buffer():
    sent = message_of(BATCH)
    (batch,) = unpacked(sent, copy=False)
    context = multiprocessing.get_context("fork")
    fork = context.Process(target=batch.batch.clear)
    fork.start()
    fork.join(60)
    assert fork.exitcode == 0
    assert sent.buffer.is_in_use
    batch.batch.clear()
    assert not sent.buffer.is_in_use


def test_batches_are_made_where_the_trainer_finds_them():
    maker = MessageMaker(2)
    list(unpacked(message_of(BATCH, maker=maker)))  # now it knows how large they are
    maker.prepare(2)
    made = [made_in(maker.arena, SHARED_BYTES, number) for number in (1, 2)]
    small = torch.tensor([5, 6])
    sent = message_of(*({"x": each, "small": small} for each in made), maker=maker)
    start, end = (
        sent.buffer.content.ctypes.data,
        sent.buffer.content.ctypes.data + len(sent.buffer.content),
    )
    assert all(start <= each.data_ptr() < end for each in made)
    received = [each.batch for each in unpacked(sent, copy=False)]
    assert [each["x"].data_ptr() for each in received] == [each.data_ptr() for each in made]
    assert [int(each["x"].max()) for each in received] == [1, 2]
    assert [each["small"].tolist() for each in received] == [[5, 6]] * 2


@pytest.mark.parametrize("size", [2 * SHARED_BYTES, 100])
def test_batches_of_another_size_than_expected_arrive_whole(size):
    maker = MessageMaker(1)
    list(unpacked(message_of(BATCH, maker=maker)))
    maker.prepare(1)
    made = [made_in(maker.arena, length, 7) for length in (1000, size)]
    sent = message_of({"x": made}, maker=maker)
    assert isinstance(sent.buffer, SharedBuffer) is (size > SHARED_BYTES)
    (received,) = unpacked(sent)
    for column, original in zip(received.batch["x"], made, strict=True):
        assert torch.equal(column, original)
    maker.prepare(1)  # the buffer is free again
    made = made_in(maker.arena, SHARED_BYTES, 0)
    assert message_of({"x": made}, maker=maker).buffer.is_in_use


def test_batches_that_are_made_twice_need_no_larger_buffers():
    maker = MessageMaker(3)
    for number in range(4):
        maker.prepare(2)
        for _ in range(2):
            made = [made_in(maker.arena, SHARED_BYTES, number) for _ in range(2)]
        sent = message_of(*({"x": each} for each in made), maker=maker)
        assert len(sent.buffer.content) == 2 * SHARED_BYTES
        for received in unpacked(sent, copy=False):
            assert torch.equal(received.batch["x"], made[0])
        del received
        assert not any(buffer and buffer.is_in_use for buffer in maker._buffers._buffers)


def test_a_message_that_ends_early_brings_what_there_is():
    maker = MessageMaker(1)
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

    maker = MessageMaker(2)
    list(unpacked(message_of(batch(1, 1), maker=maker)))
    maker.prepare(1)
    listed = batch(2, None)
    early = message_of(listed, maker=maker)
    for value in (8, 9):
        maker.prepare(1)
        later = batch(value, value)
        message_of(later, maker=maker)
    late = ForkingPickler.dumps(early)  # by a thread of torch's, when the pipe has room
    (received,) = unpacked(pickle.loads(late))
    first, second, third = received.batch["x"]
    assert (set(first.tolist()), set(second.tolist()), third) == ({2}, {2}, None)


def test_shared_buffers_are_used_one_after_the_other_and_grow():
    maker = MessageMaker(2)
    sizes = [SHARED_BYTES, SHARED_BYTES, SHARED_BYTES // 2, 2 * SHARED_BYTES, SHARED_BYTES]
    buffers = []
    for size in sizes:
        sent = message_of({"x": torch.ones(size, dtype=torch.uint8)}, maker=maker)
        list(unpacked(sent))
        buffers.append(sent.buffer)
    first, second, small, larger, again = buffers
    assert isinstance(small, bytearray)
    assert larger not in (first, second)
    assert again is second is not first
    assert len(larger.content) == 2 * SHARED_BYTES


def test_a_buffer_in_use_is_never_taken():
    buffers = SharedBuffers(2)
    first, second = buffers.take(100), buffers.take(100)
    third = buffers.take(100)
    assert len({each.content.ctypes.data for each in (first, second, third)}) == 3
    second.is_in_use = False
    assert buffers.take(64) is second


def test_a_buffer_is_opened_once():
    buffers = SharedBuffers(1)
    sent = buffers.take(100)
    pickled = [ForkingPickler.dumps(sent) for _ in range(2)]
    received = [pickle.loads(each) for each in pickled]
    assert received[0] is received[1]
    sent.content[:] = 7
    assert received[1].content.tolist() == [7] * 100
    sent.is_in_use = False
    larger = buffers.take(200)  # under the same name
    received = [pickle.loads(ForkingPickler.dumps(larger)) for _ in range(2)]
    larger.content[:] = 8
    assert received[1].content.tolist() == [8] * 200
    forget_buffers([os.getpid()])
    with pytest.raises(KeyError):
        pickle.loads(ForkingPickler.dumps(larger))


def test_a_buffer_for_want_of_a_free_one_travels_as_a_whole_each_time():
    buffers = SharedBuffers(1)
    buffers.take(100)
    odd = buffers.take(100)
    received = [pickle.loads(ForkingPickler.dumps(odd)) for _ in range(2)]
    odd.content[:] = 9
    assert [int(each.content.min()) for each in received] == [9, 9]


def test_messages_grow_up_to_a_number_of_bytes_or_batches():
    assert list(islice(message_sizes(BatchBytes(inline=100)), 7)) == [1, 2, 4, 8, 16, 16, 16]
    assert list(islice(message_sizes(BatchBytes(inline=2**18)), 4)) == [1, 2, 4, 4]
    assert list(islice(message_sizes(BatchBytes(shared=2**21)), 3)) == [1, 2, 2]
    assert list(islice(message_sizes(BatchBytes(shared=2**22 + 1)), 3)) == [1, 1, 1]
    assert list(islice(message_sizes(BatchBytes()), 3)) == [1, 1, 1]  # nobody knows


def test_the_bytes_of_a_batch_are_judged_by_one_sample():
    sample = {"__key__": ["abc"], "image": torch.zeros(1, 3, 9, 9), "label": torch.zeros(1)}
    key_bytes = len(pickle.dumps(["abc"]))
    assert batch_bytes(sample, 10) == BatchBytes(inline=10 * (4 + key_bytes + 972))
    assert batch_bytes(sample, 1000) == BatchBytes(inline=1000 * key_bytes, shared=976_000)
    few = batch_bytes(sample, 40)  # sixteen batches of them come to half a megabyte
    assert few == BatchBytes(inline=40 * key_bytes, shared=40 * 976)
    assert batch_bytes(tuple(sample.values()), 10) == batch_bytes(sample, 10)


def test_tensors_in_lists_are_counted_as_the_buffer_holds_them():
    boxes = {"boxes": torch.zeros(25_000), "tags": ["a"]}
    counted = batch_bytes({"targets": [boxes]}, 64)
    sent = message_of({"targets": [boxes] * 64})
    assert counted.shared == len(sent.buffer.content) == 64 * 100_032  # in steps of 64 bytes
    assert counted.inline < 64 * 1000
    assert tensor_bytes({"targets": [boxes]}, 64) == counted.shared


def test_too_little_shared_memory_is_an_error_with_the_numbers(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 100 * 2**20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    fits = ProcessPool(2, start_method="fork", batch=BatchBytes(shared=2**20 * 100 // 8))
    require_shared_memory(fits, str(tmp_path))
    large = {"start_method": "fork", "batch": BatchBytes(2**30, shared=20 * 2**20)}
    with pytest.raises(ConfigError) as caught:
        ProcessPool(2, **large)
    assert "has 100 MiB free, and the workers need 160 MiB" in str(caught.value)
    assert "1 rank x 2 workers x 4 messages of 20.0 MiB" in str(caught.value)
    assert "--shm-size" in str(caught.value)
    with pytest.raises(ConfigError, match=r"need 640 MiB: 8 ranks x 1 worker x"):
        ProcessPool(1, ranks=8, **large)
    with pytest.raises(ConfigError, match=r"need 160 MiB: 1 rank x 10 workers x 4 messages of 4"):
        ProcessPool(10, start_method="fork", batch=BatchBytes(shared=2**20))
    require_shared_memory(fits, str(tmp_path / "none"))  # other systems have no such folder
