"""What is guaranteed of bad samples, in the names of its tests."""

from collections import Counter

import numpy as np
import pytest
from spoilt_shards import IDS, NUM_SAMPLES, READERS, REASONS, REMAINDERS, data_of

from lightning_shards import ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.plan.digest import add_digests, digest_ids
from lightning_shards.plan.place import Place


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
    with pytest.raises(ConfigError, match=r"of 'train' says by `__weight__`.*batch_format='dict'"):
        ShardDataModule(split, fields={"label": "cls"}, batch_format="tuple")


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reader", READERS)
def test_a_budget_that_is_exactly_met_lasts_and_begins_anew_each_epoch(
    request, reader, num_workers
):
    data = data_of(request, reader)
    loader = data.module(reader=reader, max_bad=8, num_workers=num_workers).loader("train")
    for _ in range(3):
        assert len(list(loader)) == len(loader)
        assert len(loader.served.bad) == 8
    loader.close()


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reader", READERS)
def test_one_bad_sample_too_many_ends_the_epoch(request, reader, num_workers):
    data = data_of(request, reader)
    module = data.module(
        reader=reader, sampling="sequential", max_bad=7, num_workers=num_workers, remainder="pad"
    )
    loader = module.loader("train")
    batches, taken = iter(loader), []
    with pytest.raises(SampleError) as caught:
        taken.extend(batches)
    assert len(taken) == len(loader) - 1
    message = str(caught.value)
    assert message.startswith("8 bad samples on this rank in epoch 0 (")
    kinds = Counter(REASONS[kind] for kind in data.bad.values())
    assert all(f"{number} {reason}" in message for reason, number in kinds.items())
    assert "more than max_bad=7 of all ranks; repair the shards, or allow more" in message
    first, *others = message.splitlines()[1:]
    assert first.startswith("  shard 0, sample 0: sample '0000' of ")
    assert len(others) == 2
    assert loader.epoch == 0


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_neighbours_that_are_bad_keep_no_fit_from_its_start(make_data, reader, world_size):
    data = make_data(dict.fromkeys(range(8), "image"), counts=(20, 20))
    source = data.module(reader=reader, sampling="sequential", max_bad=8).loader("train").source
    for rank in range(world_size):
        source.first_sample(Place(rank, world_size))


@pytest.mark.parametrize("reader", READERS)
def test_samples_that_are_all_bad_are_no_case_for_the_setting_that_is_set(make_data, reader):
    data = make_data(dict.fromkeys(range(20), "image"), counts=(20,))
    with pytest.raises(SampleError) as caught:
        data.module(reader=reader, max_bad=8).loader("train").source.first_sample(Place())
    (note,) = caught.value.__notes__
    assert note.startswith("all 8 samples that were tried before the start are bad, which is no")
