"""How many samples may be bad in an epoch, and what is found before the first step."""

from collections import Counter

import pytest
from spoilt_shards import READERS, REASONS, Picky, data_of

from lightning_shards.errors import SampleError
from lightning_shards.plan.place import Cursor, Place

STRICT = {"on_bad_sample": "raise", "max_bad": 0}


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


def test_ranks_have_budgets_of_their_own_until_their_sum_is_taken(indexed_data):
    module = indexed_data.module(sampling="sequential", max_bad=7, batch_size=5)
    loaders = [module.loader("train", rank=rank, world_size=3) for rank in range(3)]
    assert sum(len(list(loader)) for loader in loaders) == 6
    assert sum(len(loader.served.bad) for loader in loaders) == 8


def test_a_resumed_epoch_counts_from_where_it_was_resumed(indexed_data):
    module = indexed_data.module(sampling="sequential", max_bad=7)
    first = module.loader("train")
    next(iter(first))
    assert len(first.served.bad) == 1
    resumed = module.loader("train")
    resumed.load_state_dict(first.state_dict())
    assert len(list(resumed)) == len(resumed) - 1
    assert len(resumed.served.bad) == 7


@pytest.mark.parametrize("reader", READERS)
def test_a_wrong_transform_shows_before_the_fit(clean_data, reader):
    module = clean_data.module(reader=reader, transforms={"label": Picky(frozenset(range(99)))})
    source = module.loader("train").source
    with pytest.raises(SampleError, match="the transform of field 'label' failed on sample"):
        source.first_sample(Place())


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


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("settings", "has_weight"), [({"max_bad": 3}, True), (STRICT, False)])
def test_the_first_sample_has_a_weight_if_the_batches_have(
    clean_data, reader, settings, *, has_weight
):
    source = clean_data.module(reader=reader, **settings).loader("train").source
    assert ("__weight__" in source.first_sample(Place()).batch) == has_weight
    assert ("__weight__" in next(source.batches(Place(), Cursor())).batch) == has_weight
