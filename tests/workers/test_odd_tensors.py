"""Tensors that are no one block of numbers travel as they are, from every pool."""

from collections import namedtuple

import numpy as np
import pytest
import torch

from lightning_shards import LoaderConfig, SplitConfig
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.tensors import map_columns, with_tensors
from lightning_shards.workers.messages import batch_bytes, require_picklable, tensor_bytes
from tests.workers.message_examples import Pair, message_of, travelled, unpacked
from tests.workers.odd_tensors import ODD_BATCHES, ODD_TENSORS, plain

ODD = {**ODD_TENSORS, **ODD_BATCHES}
pytestmark = pytest.mark.filterwarnings("ignore:.*(nested|[Ss]parse|quant|deprecated).*")


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_an_odd_tensor_is_the_same_with_and_without_a_message(make):
    batch = {"itself": make(), "in a list": [make(), 1], "deep": {"in": (1, [make()])}}
    (received,) = unpacked(travelled(message_of(batch)))
    assert plain(received.batch) == plain(batch)
    (alone,) = unpacked(travelled(message_of(make())))
    assert type(with_tensors(alone.batch)) is type(with_tensors(make()))
    assert plain(with_tensors(alone.batch)) == plain(with_tensors(make()))


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_an_odd_tensor_is_counted_as_what_is_pickled(make):
    batch = {"x": make(), "y": [make()]}
    assert tensor_bytes(batch, 2) == 0
    assert batch_bytes(batch, 2).total > 0
    assert batch_bytes(make(), 2).total > 0


class Gives:
    """A collate function of one value."""

    takes_arrays = True

    def __init__(self, name):
        self.name = name

    def __call__(self, samples):
        make = ODD[self.name]
        return make() if self.name in ODD_BATCHES else {"x": make(), "list": [make()] * 2}


POOLS = {
    "threads": (2, {"pool": "threads"}),
    "fork": (2, {"multiprocessing_context": "fork"}),
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("name", ["sparse", "nested", "packed", "checked"])
def test_every_pool_gives_what_the_trainer_alone_would_make(pack_shards, make_module, pool, name):
    num_workers, settings = pool
    split = SplitConfig(pack_shards([4]), sampling="sequential", collate_fn=Gives(name))
    alone = list(make_module(split).loader("train"))
    module = make_module(split, loader=LoaderConfig(**settings), num_workers=num_workers)
    with module.loader("train") as loader:
        assert list(map(plain, loader)) == list(map(plain, alone))


def test_components_of_sparse_batches_are_compared_by_what_is_dense(pack_shards, make_module):
    urls = pack_shards([4])
    mix = {"a": {"urls": urls, "weight": 1}, "b": {"urls": urls, "weight": 1}}
    split = {"mix": mix, "round": 2, "dataset_size": 4, "collate_fn": Gives("sparse")}
    fork = LoaderConfig(multiprocessing_context="fork")
    with make_module(split, loader=fork, num_workers=1).loader("train") as loader:
        assert next(iter(loader))["x"].layout == torch.sparse_coo


def test_a_named_tuple_keeps_its_attributes():
    class Noted(Pair):
        """A named tuple that may have attributes besides."""

    batch = Noted(torch.ones(2).numpy(), 1)
    batch.note = "why"
    made = with_tensors(batch)
    assert (type(made), type(made.image), made.note) == (Noted, torch.Tensor, "why")
    assert map_columns(Pair(1, 2), str) == Pair("1", "2")


def flowing():
    return torch.ones(2, requires_grad=True) * 2


@pytest.mark.parametrize("value", [flowing(), [flowing()]], ids=["itself", "in a list"])
def test_a_tensor_that_gradients_flow_through_stays_in_its_process(value):
    batch = {"__key__": ["k"], "x": value}
    assert tensor_bytes(batch, 2) == 0
    with pytest.raises(ConfigError, match=r"^field 'x' cannot travel .*call detach\(\) on it"):
        batch_bytes(batch, 2)
    with pytest.raises(SampleError, match=r"^field 'x' of sample 'k' cannot travel .*detach"):
        require_picklable(batch)


def test_a_batch_of_a_class_that_has_no_name_in_its_module_is_refused_as_that():
    batch = namedtuple("Pair", ["x", "y"])(torch.arange(3), [1, 2])  # noqa: PYI024 in a function
    with pytest.raises(ConfigError, match=r"^the batch cannot travel .*Pair.*pool='threads'"):
        batch_bytes(batch, 2)
    with pytest.raises(SampleError, match=r"^the batch of row 0 cannot travel .*Pair"):
        require_picklable(batch)


def test_an_array_of_any_numbers_is_pinned_as_the_trainer_would_make_it(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self * 1)
    batch = {
        "swapped": np.arange(3, dtype=">f4"),
        "long": np.ones(3, np.longdouble),
        "leaf": torch.ones(2, requires_grad=True),
    }
    (received,) = unpacked(travelled(message_of(batch)).pin_memory())
    assert received.batch["swapped"].tolist() == [0, 1, 2]
    assert torch.is_tensor(received.batch["swapped"])
    assert received.batch["long"].dtype == np.longdouble  # which with_tensors refuses by its name
    leaf = received.batch["leaf"]
    assert (leaf.requires_grad, leaf.is_leaf) == (True, True)
