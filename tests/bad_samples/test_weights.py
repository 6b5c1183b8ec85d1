"""Replaced samples weigh nothing, and digests account for them."""

import numpy as np
import pytest
from spoilt_shards import IDS, NUM_SAMPLES, READERS, REMAINDERS, data_of

from lightning_shards import ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.plan.digest import add_digests, digest_ids


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("reader", READERS)
def test_a_weighted_metric_is_that_of_the_good_samples(request, reader, remainder, world_size):
    data = data_of(request, reader)
    module = data.module(reader=reader, sampling="sequential", remainder=remainder, batch_size=5)
    total = weight = 0.0
    for rank in range(world_size):
        for batch in module.loader("train", rank=rank, world_size=world_size):
            total += float((batch["label"] * batch["__weight__"]).sum())
            weight += float(batch["__weight__"].sum())
    good = [number for number in range(NUM_SAMPLES) if number not in data.bad]
    assert (weight, total / weight) == (len(good), pytest.approx(np.mean(good)))


@pytest.mark.parametrize("remainder", ["pad", "balanced"])
@pytest.mark.parametrize("reader", READERS)
def test_the_digests_of_served_and_bad_samples_are_that_of_the_order(request, reader, remainder):
    data = data_of(request, reader)
    module = data.module(reader=reader, remainder=remainder, batch_size=7)
    digests, bad = [], []
    for rank in range(4):
        loader = module.loader("train", rank=rank, world_size=4)
        list(loader)
        digests.append(loader.served.digest)
        bad += loader.served.bad
    ids = np.array([each[:2] for each in bad], dtype=np.int64)
    assert {each[:2]: each.reason for each in bad} == data.bad_ids
    assert len(bad) == len(data.bad)
    assert add_digests(*digests, digest_ids(ids)) == digest_ids(np.array(IDS, dtype=np.int64))
    assert digest_ids(ids) != 0


def test_a_tuple_has_no_weights_and_is_refused(clean_data):
    split = SplitConfig(clean_data.urls, on_bad_sample="substitute", max_bad=1)
    module = ShardDataModule(split, fields={"label": "cls"}, batch_format="tuple")
    with pytest.raises(ConfigError, match=r"of 'train' says by `__weight__`.*batch_format='dict'"):
        module.loader("train")
