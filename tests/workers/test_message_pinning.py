"""Messages are pinned as a whole: all tensors of their batches, wherever these hold them."""

import pytest
import torch

from lightning_shards.samples.generators import are_same
from tests.workers.message_examples import (
    LARGE,
    SMALL,
    message_of,
    travelled,
    unpacked,
)


def nested_batch(number):
    """A batch as a `collate_fn` may make it: tensors wherever a batch can hold them."""
    small = SMALL + number
    return {
        "__key__": ["a", "b"],
        "large": LARGE + number,
        "array": small.numpy(),
        "tensors": [small, small[:, :1].clone(), torch.tensor(number)],
        "deep": {"list": [{"mask": small > 2}, (small.float(), "text")], "none": None},
        "pair": (small.double(), [small.T, 7], torch.zeros(0)),
        "array in a list": [small.numpy()],
    }


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in tensors_in(each)]
    parts = value if isinstance(value, list | tuple) else ()
    return [tensor for each in parts for tensor in tensors_in(each)]


@pytest.mark.parametrize(
    "made",
    [
        nested_batch,
        lambda number: list(nested_batch(number).values()),
        lambda number: SMALL + number,
    ],
    ids=["dict", "list", "tensor"],
)
def test_all_tensors_of_nested_batches_are_pinned(monkeypatch, made):
    """`Tensor.pin_memory` needs a GPU: here it makes copies, by which pinned tensors are known."""
    pinned = []

    def pin_memory(tensor):
        pinned.append(tensor.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    message = travelled(message_of(made(0), made(1)))
    shared = message.buffer
    batches = [loaded.batch for loaded in unpacked(message.pin_memory())]
    expected = [made(0), made(1)]
    for batch in expected:
        if isinstance(batch, dict):
            batch["array"] = torch.as_tensor(batch["array"])
    assert are_same(batches, expected)
    tensors = tensors_in(batches)
    assert {id(tensor) for tensor in tensors} == {id(tensor) for tensor in pinned}
    assert len(tensors) == len(tensors_in(expected)) >= 2
    assert message.buffer is not shared  # the worker may use its memory again
    assert message.lease() is None
