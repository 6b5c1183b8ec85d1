"""How many batches a message holds, and how much shared memory that takes."""

import pickle
from itertools import islice

import pytest
import torch

from lightning_shards.errors import ConfigError
from lightning_shards.workers.messages import (
    BatchBytes,
    batch_bytes,
    message_sizes,
    tensor_bytes,
)
from lightning_shards.workers.processes import ProcessPool, require_shared_memory
from tests.workers.message_examples import message_of


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
    targets = [{"boxes": torch.zeros(25_000), "tags": ["a"]} for _ in range(64)]
    counted = batch_bytes({"targets": targets[:1]}, 64)
    sent = message_of({"targets": targets})
    assert counted.shared == len(sent.buffer.content) == 64 * 100_032  # in steps of 64 bytes
    assert counted.inline < 64 * 1000
    assert tensor_bytes({"targets": targets[:1]}, 64) == counted.shared


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
