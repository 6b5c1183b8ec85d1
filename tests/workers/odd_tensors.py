"""Tensors that are no one block of numbers, and batches that only their class can make."""

import warnings
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

PARTS = [torch.arange(2.0), torch.arange(3.0)]


def nested(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor(PARTS, layout=layout)


class Named(NamedTuple):
    """A pair without a check."""

    first: object
    second: object


class Checked(Named):
    """One that is made of tensors alone, and of one argument."""

    __slots__ = ()

    def __new__(cls, first):
        return super().__new__(cls, first + 0, first.shape)

    def __getnewargs__(self):
        return (self.first,)


ODD_TENSORS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "nested": lambda: nested(torch.jagged),
    "conjugated": lambda: torch.tensor([1 + 2j, 3j]).conj(),
}

ODD_BATCHES = {
    "packed": lambda: pack_sequence(PARTS[::-1]),
    "checked": lambda: Checked(PARTS[0]),
}


def plain(value):
    """A form of such values that can be compared."""
    if isinstance(value, PackedSequence | Named):
        return type(value).__name__, [plain(each) for each in value]
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if not torch.is_tensor(value):
        return value
    numbers = (
        value.unbind() if value.is_nested else [value.to_dense() if is_sparse(value) else value]
    )
    return value.layout, value.dtype, [each.tolist() for each in numbers]


def is_sparse(tensor):
    return tensor.layout not in (torch.strided, torch.jagged)
