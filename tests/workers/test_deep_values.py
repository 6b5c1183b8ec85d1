"""Values in values in values, as JSON may hold them."""

import json

import pytest
import torch

from lightning_shards import LoaderConfig, SplitConfig
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.workers.messages import batch_bytes, require_picklable, tensor_bytes
from tests.workers.message_examples import message_of, travelled, unpacked
from tests.workers.test_stowaways import PROCESSES, Odd, numbers


def nested(levels, value=None):
    for _level in range(levels):
        value = [value]
    return value


def depth_of(value):
    levels = 0
    while value is not None:
        (value,), levels = value, levels + 1
    return levels


TOO_DEEP = 50_000


@pytest.mark.parametrize("levels", [10, 100])
def test_a_tensor_at_any_depth_is_the_same(levels):
    (received,) = unpacked(travelled(message_of({"x": [nested(levels, torch.arange(3))]})))
    (back,) = received.batch["x"]
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


@pytest.mark.parametrize("pool", PROCESSES)
def test_a_worker_names_the_sample_that_is_too_deep(pool, start):
    stream = start(pool, Odd(lambda: nested(TOO_DEEP)))
    assert numbers(stream, 5) == list(range(5))
    with pytest.raises(SampleError, match=r"^field 'odd' of sample '5-1' cannot travel"):
        next(stream)


@pytest.mark.parametrize("pool", ["threads", "processes"])
@pytest.mark.parametrize("reader", ["indexed", "stream"])
def test_deep_members_are_read_by_all_pools(tmp_path, make_module, write_tar, reader, pool):
    member = json.dumps(nested(300)).encode()
    shard = write_tar(tmp_path / "a.tar", [(f"{number}.json", member) for number in range(4)])
    split = SplitConfig(str(shard), sampling="sequential", reader=reader)
    settings = LoaderConfig(pool=pool, multiprocessing_context="fork")
    module = make_module(split, loader=settings, num_workers=1, fields={"x": "json"})
    with module.loader("train") as loader:
        batches = list(loader)
    assert [len(batch["x"]) for batch in batches] == [2, 2]
    assert depth_of(batches[1]["x"][1]) == 300
