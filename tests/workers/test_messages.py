"""Batches on their way between processes."""

import pickle
from itertools import islice
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

from lightning_shards.errors import ConfigError
from lightning_shards.pipeline.collate import BadSample, Made
from lightning_shards.workers.messages import (
    SHARED_BYTES,
    BatchBytes,
    Message,
    SharedBlocks,
    batch_bytes,
    message_sizes,
    tensor_bytes,
)
from lightning_shards.workers.pool import Produced
from lightning_shards.workers.processes import ProcessPool, require_shared_memory

SMALL = torch.arange(6, dtype=torch.int16).reshape(2, 3)
LARGE = torch.zeros(SHARED_BYTES, dtype=torch.uint8)
BLOCKS = SharedBlocks(1)
BATCH = {"__key__": ["a", "b"], "small": SMALL, "large": LARGE, "array": SMALL.numpy()}


@pytest.mark.parametrize("batch", [BATCH, tuple(BATCH.values())], ids=["dict", "tuple"])
def test_a_message_gives_what_was_put_in(batch):
    bad = (BadSample(0, 1, "SampleError"),)
    sent = [Produced(Made(batch, digest, bad), seconds=digest / 2) for digest in (2**64 - 1, 3)]
    received = list(pickle.loads(ForkingPickler.dumps(Message(sent, BLOCKS))).unpack())
    assert [each.seconds for each in received] == [each.seconds for each in sent]
    for each, original in zip(received, sent, strict=True):
        assert each.made[1:] == original.made[1:]
        assert type(each.made.batch) is type(batch)
        columns = each.made.batch.values() if type(batch) is dict else each.made.batch
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
    sent = Message([Produced(Made({"x": column, "targets": nested}), 0.0)], BLOCKS)
    assert b"rebuild" not in pickle.dumps(sent)  # torch's own way, which opens a file for each
    (received,) = pickle.loads(pickle.dumps(sent)).unpack()
    for each in (
        received.made.batch["x"],
        received.made.batch["targets"][1]["boxes"],
        received.made.batch["targets"][0]["tags"][1][0],
    ):
        assert (each.dtype, each.shape) == (column.dtype, column.shape)
        assert each.tolist() == column.tolist()
    assert received.made.batch["targets"][0]["tags"][0] == "a"


def test_a_message_is_pinned_as_a_whole(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    message = Message([Produced(Made(BATCH), 0.0)] * 2, BLOCKS).pin_memory()
    assert [tuple(each.shape) for each in pinned] == [(2, 3), (SHARED_BYTES,)] * 2
    assert torch.equal(list(message.unpack())[1].made.batch["small"], SMALL)


def message_of(*columns, blocks=BLOCKS):
    return Message([Produced(Made({"x": column}), 0.0) for column in columns], blocks)


def test_half_a_megabyte_goes_through_shared_memory_and_comes_as_tensors_of_their_own():
    columns = [torch.full((SHARED_BYTES // 8 + odd,), odd, dtype=torch.uint8) for odd in range(9)]
    sent = message_of(*columns)
    assert sent.block.is_shared()
    received = [each.made.batch["x"] for each in sent.unpack()]
    for column, original in zip(received, columns, strict=True):
        assert torch.equal(column, original)
        assert column.untyped_storage().nbytes() == len(original)
        column.add_(1)
    assert [int(column.max()) for column in received] == list(range(1, 10))
    assert not torch.is_tensor(message_of(columns[0]).block)


def test_shared_blocks_are_used_in_turn_and_grow():
    blocks = SharedBlocks(2)
    sizes = [SHARED_BYTES, SHARED_BYTES, SHARED_BYTES // 2, 2 * SHARED_BYTES, SHARED_BYTES]
    sent = [message_of(torch.ones(size, dtype=torch.uint8), blocks=blocks) for size in sizes]
    addresses = [each.block.data_ptr() for each in sent if torch.is_tensor(each.block)]
    first, second, larger, again = addresses
    assert first != second
    assert larger not in (first, second)
    assert again == second
    assert len(sent[3].block) == 2 * SHARED_BYTES


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


def test_tensors_in_lists_are_counted_as_the_block_holds_them():
    boxes = {"boxes": torch.zeros(25_000), "tags": ["a"]}
    counted = batch_bytes({"targets": [boxes]}, 64)
    sent = message_of([boxes] * 64)
    assert counted.shared == len(sent.block) == 64 * 100_032  # in steps of 64 bytes
    assert counted.inline < 64 * 1000
    assert tensor_bytes({"targets": [boxes]}, 64) == counted.shared


def test_too_little_shared_memory_is_an_error_with_the_numbers(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 100 * 2**20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    fits = ProcessPool(2, start_method="fork", batch=BatchBytes(shared=2**20 * 100 // 6))
    require_shared_memory(fits, str(tmp_path))
    large = {"start_method": "fork", "batch": BatchBytes(2**30, shared=20 * 2**20)}
    with pytest.raises(ConfigError) as caught:
        ProcessPool(2, **large)
    assert "has 100 MiB free, and the workers need 120 MiB" in str(caught.value)
    assert "1 ranks x 2 workers x 3 messages of 20.0 MiB" in str(caught.value)
    assert "--shm-size" in str(caught.value)
    with pytest.raises(ConfigError, match=r"need 480 MiB: 8 ranks x 1 workers"):
        ProcessPool(1, ranks=8, **large)
    with pytest.raises(ConfigError, match=r"need 120 MiB: 1 ranks x 10 workers x 3 messages of 4"):
        ProcessPool(10, start_method="fork", batch=BatchBytes(shared=2**20))
    require_shared_memory(fits, str(tmp_path / "none"))  # other systems have no such folder
