"""Validation, test and prediction: each sample once, from the beginning each time."""

import pytest
from fit_recorder import SWITCHES, VAL, Recorder, all_ids


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
