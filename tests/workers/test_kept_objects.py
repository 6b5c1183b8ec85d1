"""What is sent is not changed: an object of the user's keeps its tensors, message after message."""

import copy
import copyreg
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import MutableMapping
from dataclasses import dataclass

import pytest
import torch

from tests.workers.message_examples import message_of, travelled, unpacked


class Plain(MutableMapping):
    """A mapping of the user's own, whose copy by Python shares its data."""

    def __init__(self, **items):
        self.items_by_name = items

    def __getitem__(self, name):
        return self.items_by_name[name]

    def __setitem__(self, name, value):
        self.items_by_name[name] = value

    def __delitem__(self, name):
        del self.items_by_name[name]

    def __iter__(self):
        return iter(self.items_by_name)

    def __len__(self):
        return len(self.items_by_name)


class Sharing(UserDict):
    """One whose copy is itself."""

    def __copy__(self):
        return self


class Strict(UserDict):
    """One that takes tensors alone, as long as it is alive."""

    def __setitem__(self, name, value):
        super().__setitem__(name, value + 0)


class Encoding(UserDict):
    """As transformers' BatchEncoding is pickled."""

    def __getstate__(self):
        return {"data": self.data}

    def __setstate__(self, state):
        self.data = state["data"]


@dataclass
class Simple:
    x: object


@dataclass(frozen=True, slots=True)
class Frozen:
    x: object


@dataclass
class State(Simple):
    """Its copy has the same dict."""

    def __getstate__(self):
        return self.__dict__

    def __setstate__(self, state):
        self.__dict__ = state


@dataclass
class Itself(Simple):
    def __copy__(self):
        return self


@dataclass
class Reduced(Simple):
    def __reduce__(self):
        return Reduced, (self.x + 0,)


@dataclass
class Registered(Simple):
    """Another module says how it is pickled."""


copyreg.pickle(Registered, lambda value: (Registered, (value.x + 0,)))


@dataclass
class Guarded:
    """A field that is a property, which looks at what it is given."""

    x: object

    @property
    def x(self):
        return self.kept

    @x.setter
    def x(self, value):
        self.kept = value + 0


OBJECTS = {
    "a mapping": lambda x: Plain(x=x),
    "a copy that shares": lambda x: Sharing(x=x),
    "a strict one": lambda x: Strict(x=x),
    "an encoding": lambda x: Encoding(x=x),
    "a UserDict": lambda x: UserDict(x=x),
    "in order": lambda x: OrderedDict(x=x),
    "with a default": lambda x: defaultdict(list, x=x),
    "a dataclass": Simple,
    "with slots": Frozen,
    "with a state of its own": State,
    "its own copy": Itself,
    "reduced": Reduced,
    "registered": Registered,
    "with a property": Guarded,
}


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_an_object_that_is_sent_twice_is_the_same_twice(make):
    """As one that a `collate_fn` keeps between batches, and changes."""
    value = make(torch.arange(3))
    before = copy.deepcopy(value)
    for _again in range(2):
        content = message_of({"first": torch.full((9,), 7), "object": [value]})
        (received,) = unpacked(travelled(content))
        (back,) = received.batch["object"]
        assert type(back) is type(value)
        for each in (back, value, before):
            x = each["x"] if hasattr(each, "__getitem__") else each.x
            assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "name", ["an encoding", "a UserDict", "in order", "with a default", "a dataclass", "with slots"]
)
def test_tensors_of_common_classes_are_not_pickled(name):
    content = message_of({"x": [OBJECTS[name](torch.arange(3))]}).pickled().content
    assert b"rebuild" not in content
