"""Tensors that are no one block of numbers travel as they are, from every pool."""

import pytest
import torch

from lightning_shards import LoaderConfig, SplitConfig
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.tensors import with_tensors
from lightning_shards.workers.messages import batch_bytes, require_picklable, tensor_bytes
from tests.workers.message_examples import message_of, travelled, unpacked
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


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sparse", {"pool": "threads"}),
        ("nested", {"multiprocessing_context": "fork"}),
        ("packed", {"multiprocessing_context": "fork"}),
    ],
)
def test_every_pool_gives_what_the_trainer_alone_would_make(
    pack_shards, make_module, settings, name
):
    split = SplitConfig(pack_shards([4]), sampling="sequential", collate_fn=Gives(name))
    alone = list(make_module(split).loader("train"))
    module = make_module(split, loader=LoaderConfig(**settings), num_workers=2)
    with module.loader("train") as loader:
        assert list(map(plain, loader)) == list(map(plain, alone))


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
