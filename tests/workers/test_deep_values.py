"""Values in values in values: deep ones, those that hold themselves, and those that are shared."""

import json
import pickle
from dataclasses import dataclass, field
from itertools import count

import pytest
import torch

from lightning_shards import LoaderConfig, SplitConfig
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.failures import failure_of, last_message
from lightning_shards.workers.messages import (
    MessageMaker,
    batch_bytes,
    require_picklable,
    tensor_bytes,
)
from lightning_shards.workers.processes import ProcessPool
from tests.workers.message_examples import message_of, travelled, unpacked
from tests.workers.test_stowaways import PROCESSES, Odd, numbers


@dataclass
class Node:
    """A node of a tree that knows its parent."""

    x: torch.Tensor
    parent: "Node | None" = None
    children: list["Node"] = field(default_factory=list)

    def with_children(self, num_children, levels):
        for number in range(num_children if levels else 0):
            child = Node(self.x + number + 1, self)
            self.children.append(child.with_children(num_children, levels - 1))
        return self


def nested(levels, value=None):
    for _level in range(levels):
        value = [value]
    return value


def depth_of(value):
    levels = 0
    while value is not None:
        (value,), levels = value, levels + 1
    return levels


def itself():
    value = []
    value.append(value)
    return value


def a_dict_of_itself():
    value = {"x": torch.ones(2)}
    value["own"] = value
    return value


def a_tuple_of_itself():
    value = ([torch.ones(2)],)
    value[0].append(value)
    return value


TOO_DEEP = 50_000


def test_a_tree_with_parents_comes_back_as_one():
    tree = Node(torch.zeros(2)).with_children(3, 3)
    (received,) = unpacked(travelled(message_of({"tree": [tree]})))
    (root,) = received.batch["tree"]
    assert (type(root), root.parent, len(root.children)) == (Node, None, 3)
    last = root.children[2].children[2].children[2]
    assert last.x.tolist() == [9, 9]
    assert last.parent.parent.parent is root
    assert tree.children[0].x.tolist() == [1, 1]  # ours is as it was
    assert b"rebuild" not in message_of({"tree": [tree]}).pickled().content


def test_values_that_hold_themselves_do_so_on_the_other_side():
    sent = {"list": [itself()], "dict": [a_dict_of_itself()], "tuple": [a_tuple_of_itself()]}
    (received,) = unpacked(travelled(message_of(sent)))
    (a_list,), (a_dict,), (a_tuple,) = received.batch.values()
    assert a_list[0] is a_list
    assert a_dict["own"] is a_dict
    assert a_dict["x"].tolist() == [1, 1]
    assert a_tuple[0][1] is a_tuple
    assert a_tuple[0][0].tolist() == [1, 1]


def test_what_is_shared_is_sent_once():
    value = torch.arange(3)
    for _level in range(20):  # 4**20 paths lead to it
        value = {"a": [value], "b": (value, value)}
    assert tensor_bytes({"x": [value]}, 1) == 64
    (received,) = unpacked(travelled(message_of({"x": [value]})))
    back = received.batch["x"][0]
    for _level in range(20):
        assert back["b"][0] is back["b"][1] is back["a"][0]
        back = back["a"][0]
    assert back.tolist() == [0, 1, 2]


@pytest.mark.parametrize("levels", [10, 63, 64, 65, 66, 200, 300])
@pytest.mark.parametrize("leaf", ["none", "tensor"])
def test_a_deep_value_is_the_same(levels, leaf):
    value = nested(levels, torch.arange(3) if leaf == "tensor" else None)
    (received,) = unpacked(travelled(message_of({"x": [value]})))
    (back,) = received.batch["x"]
    if leaf == "none":
        assert depth_of(back) == levels
    else:
        for _level in range(levels):
            (back,) = back
        assert back.tolist() == [0, 1, 2]


def test_a_value_too_deep_to_be_pickled_is_named():
    batch = {"__key__": ["a", "b"], "x": [None, nested(TOO_DEEP)]}
    named = r"^field 'x' of sample 'b' cannot travel from a worker process .*RecursionError"
    with pytest.raises(SampleError, match=named):
        require_picklable(batch)
    with pytest.raises(ConfigError, match=r"^field 'x' cannot travel .*RecursionError"):
        batch_bytes(batch, 2)
    assert tensor_bytes(batch, 2) == 0


def is_pickled(value):
    try:
        return bool(pickle.dumps(value))
    except RecursionError:
        return False


def test_at_every_depth_a_value_travels_or_is_named():
    refused = []
    most = next(levels for levels in count(100, 20) if not is_pickled(nested(levels)))
    for levels in range(most - 60, most + 5):
        loaded = LoadedBatch({"__key__": ["a"], "x": [nested(levels)]})
        try:
            MessageMaker(1).message([loaded]).pickled()
        except RecursionError as error:
            sent = last_message(MessageMaker(1), [loaded], failure_of(error))
            refused.append(str(sent.unpickled(None).failure.error))
    assert refused
    assert {text[:40] for text in refused} == {"field 'x' of sample 'a' cannot travel fr"}


@pytest.mark.parametrize("pool", PROCESSES)
def test_a_worker_names_the_sample_that_is_too_deep(pool, start):
    stream = start(pool, Odd(lambda: nested(TOO_DEEP)))
    assert numbers(stream, 5) == list(range(5))
    with pytest.raises(SampleError, match=r"^field 'odd' of sample '5-1' cannot travel"):
        next(stream)


@pytest.mark.parametrize("make", [itself, a_dict_of_itself, lambda: nested(300)])
def test_a_worker_sends_what_is_deep_or_holds_itself(make, start):
    stream = start(ProcessPool(2, start_method="fork"), Odd(make))
    assert numbers(stream, 7) == list(range(7))


@pytest.mark.parametrize("pool", ["threads", "processes"])
@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_deep_members_are_read_by_all_pools(tmp_path, make_module, write_tar, reader, pool):
    deep = json.dumps(nested(300)).encode()
    members = [(f"{number}.json", deep) for number in range(4)]
    shard = write_tar(tmp_path / "a.tar", members)
    split = SplitConfig(str(shard), sampling="sequential", reader=reader)
    settings = LoaderConfig(pool=pool, multiprocessing_context="fork")
    module = make_module(split, loader=settings, num_workers=1, fields={"x": "json"})
    with module.loader("train") as loader:
        batches = list(loader)
    assert [len(batch["x"]) for batch in batches] == [2, 2]
    assert depth_of(batches[1]["x"][1]) == 300
