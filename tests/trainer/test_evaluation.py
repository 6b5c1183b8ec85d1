"""Validation, test and prediction: each sample once each time, or a split that is not there."""

import pytest
from fit_recorder import STEPS, SWITCHES, VAL, Recorder, TrainsOnly, all_ids

from lightning_shards.errors import ConfigError


@pytest.mark.parametrize("switch", ["none", "val_check_interval=.5", "reload", "max_steps=20"])
def test_every_validation_sees_each_sample_once(switch, run_of):
    assert run_of(switch).model.validations == [all_ids(VAL)] * SWITCHES[switch][2]


@pytest.mark.parametrize("sanity_steps", [1, -1])
def test_a_sanity_check_takes_nothing_from_the_validation_after_it(
    sanity_steps, make_data, make_trainer
):
    model = Recorder()
    make_trainer(num_sanity_val_steps=sanity_steps, max_epochs=1).fit(model, make_data())
    assert model.sanity == (all_ids(VAL) if sanity_steps < 0 else all_ids(VAL)[: 2 * sanity_steps])
    assert model.validations == [all_ids(VAL)]


@pytest.mark.parametrize(("limit", "samples"), [(3, 6), (0.5, 4), (99, 7)])
def test_limited_validations_begin_at_the_beginning_each_time(
    limit, samples, make_data, make_trainer
):
    model = Recorder()
    make_trainer(limit_val_batches=limit).fit(model, make_data())
    assert model.validations == [all_ids(VAL)[:samples]] * 3


def test_loaders_of_a_trainer_that_has_not_run_give_their_batches(make_data, make_trainer):
    data = make_data()
    data.trainer = make_trainer()
    assert len(list(data.val_dataloader())) == 4


def test_a_validation_step_that_has_no_val_split_is_missed_and_told_so(make_data, make_trainer):
    model = Recorder()
    with pytest.warns(UserWarning, match="defined a `validation_step` but have no"):
        make_trainer().fit(model, make_data(val=None))
    assert len(model.steps) == 3 * STEPS
    assert model.validations == []


def test_a_missing_split_is_an_error_that_says_how_to_add_it(make_data, make_trainer):
    data = make_data(train=None)
    with pytest.raises(ConfigError, match=r"no 'train' split.*train=SplitConfig"):
        make_trainer().fit(Recorder(), data)
    for verb, split in (("test", "test"), ("predict", "predict")):
        with pytest.raises(ConfigError, match=rf"no '{split}' split.*{split}=SplitConfig"):
            getattr(make_trainer(), verb)(Recorder(), data)


def test_a_val_split_that_is_added_later_is_validated_and_one_that_is_removed_is_not(
    make_data, make_trainer
):
    added, removed = make_data(val=None), make_data()
    added.splits["val"], removed.splits["val"] = removed.splits["val"], None
    model = Recorder()
    make_trainer().fit(model, added)
    assert [len(ids) for ids in model.validations] == [sum(VAL)] * 3
    make_trainer().validate(model, added, verbose=False)
    make_trainer().fit(TrainsOnly(), removed)  # a warning is an error here
    with pytest.raises(ConfigError, match=r"no 'val' split.*val=SplitConfig"):
        make_trainer().validate(Recorder(), removed)
