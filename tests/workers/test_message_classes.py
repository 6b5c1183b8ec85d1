"""Values of any class on their way between processes."""

from collections import OrderedDict

import pytest
import torch

from lightning_shards.samples.generators import are_same
from lightning_shards.samples.tensors import with_tensors
from lightning_shards.workers.messages import tensor_bytes
from tests.workers.message_examples import BATCH, SMALL, Pair, message_of, travelled, unpacked


@pytest.mark.parametrize(
    "batch",
    [OrderedDict(BATCH), Pair(SMALL.numpy(), SMALL), [SMALL.numpy()], SMALL],
    ids=["a class of dicts", "named", "list", "tensor"],
)
def test_a_batch_of_any_class_is_the_same_with_and_without_a_message(batch):
    (received,) = unpacked(travelled(message_of(batch)))
    inline, sent = with_tensors(batch), with_tensors(received.batch)
    assert type(sent) is type(inline)
    if isinstance(batch, tuple):
        assert type(inline) is type(batch)  # of a dict's class it keeps nothing
    assert are_same(sent, inline)


class Boxes(torch.Tensor):
    """A tensor with an attribute, as those of torchvision are."""

    canvas = None

    def __reduce_ex__(self, protocol):
        return boxes_of, (self.tolist(), self.canvas)


def boxes_of(rows, canvas):
    boxes = torch.tensor(rows).as_subclass(Boxes)
    boxes.canvas = canvas
    return boxes


class Options(dict):
    """A dict of the user's own, with an attribute."""

    source = ""


class Row(list):
    """A list of the user's own."""


class Shape(tuple):
    """A tuple of the user's own."""

    __slots__ = ()


class NotedPair(Pair):
    """A named tuple that may have attributes besides."""


def noted(note):
    pair = NotedPair(SMALL, 1)
    pair.note = note
    return pair


def options(source):
    made = Options(x=SMALL)
    made.source = source
    return made


OF_OTHER_CLASSES = {
    "a tensor of a class of its own": boxes_of([[1.0, 2.0]], (10, 20)),
    "a parameter": torch.nn.Parameter(torch.ones(2)),
    "a dict in order": OrderedDict(b=SMALL, a=1),
    "a dict of one's own": options("here"),
    "a list of one's own": Row([SMALL]),
    "a tuple of one's own": Shape((SMALL, 2)),
    "named": Pair(SMALL, Row([1])),
    "named, with a note": noted("why"),
}


@pytest.mark.parametrize("name", OF_OTHER_CLASSES)
def test_a_value_of_any_class_comes_back_as_it_is(name):
    """Otherwise a batch from worker processes would differ from one of the other pools."""
    value = OF_OTHER_CLASSES[name]
    sent = {"itself": value, "in a list": [value], "deep": {"in": (1, [value])}}
    (received,) = unpacked(travelled(message_of(sent)))
    assert are_same(received.batch, sent)
    for back in (
        received.batch["itself"],
        received.batch["in a list"][0],
        received.batch["deep"]["in"][1][0],
    ):
        assert getattr(back, "__dict__", {}) == getattr(value, "__dict__", {})


def test_a_tensor_of_another_class_is_not_counted_as_one_without_it():
    boxes = OF_OTHER_CLASSES["a tensor of a class of its own"]
    assert tensor_bytes({"x": boxes, "y": [boxes]}, 2) == 0
