"""What a trainer guarantees with our loaders, in the names of its tests."""

from itertools import chain

import pytest
from fit_recorder import SWITCHES, TRAIN, EstimatingRecorder, Recorder, all_ids

from lightning_shards import Cursor

pytestmark = pytest.mark.usefixtures("held_fork_server")


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_fit_takes_the_steps_and_validations_that_its_switches_say(switch, run_of):
    _, batches, validations, optimiser_steps = SWITCHES[switch]
    model, _, trainer = run_of(switch)
    assert [len(epoch) for epoch in model.epochs().values()] == batches
    assert list(model.epochs()) == list(range(len(batches)))
    assert len(model.validations) == validations
    assert trainer.global_step == optimiser_steps
    assert all(len(ids) == 2 for _, _, ids in model.steps)


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_train_stream_starts_once_and_is_not_restarted_between_epochs(switch, run_of):
    assert run_of(switch).data.starts["train"] == [Cursor(0, 0)]


@pytest.mark.parametrize("switch", ["none", "val_check_interval=.5", "reload", "max_steps=20"])
def test_the_val_stream_rewinds_without_a_restart(switch, run_of):
    """It is started for the sanity check, which is shorter, and for all validations."""
    assert len(run_of(switch).model.validations) > 1
    assert run_of(switch).data.starts["val"] == [Cursor(), Cursor()]


@pytest.mark.parametrize(
    "switch",
    ["limit_train_batches=.5", "max_steps=13", "reload, limit", "accumulate_grad_batches=3"],
)
def test_steps_can_be_estimated_in_configure_optimizers(switch, make_data, make_trainer):
    options, _, _, optimiser_steps = SWITCHES[switch]
    model = EstimatingRecorder()
    make_trainer(**options).fit(model, make_data())
    assert model.estimated == optimiser_steps
    assert len(model.steps) == sum(SWITCHES[switch][1])  # asking has changed nothing


@pytest.mark.parametrize("switch", ["limit_train_batches=4", "limit_train_batches=.5"])
def test_a_limit_is_a_shorter_epoch_of_the_same_order(switch, run_of):
    whole = run_of("none").model.epochs()
    for epoch, batches in run_of(switch).model.epochs().items():
        assert batches == whole[epoch][: len(batches)]


def test_shuffled_training_serves_each_sample_once_an_epoch(make_data, make_trainer):
    model = Recorder()
    make_trainer().fit(model, make_data(sampling="shuffled"))
    for batches in model.epochs().values():
        assert sorted(chain(*batches)) == all_ids(TRAIN)


def test_a_trainer_that_fits_on_goes_on_with_the_next_epochs(make_data, make_trainer):
    whole, parts, data = Recorder(), Recorder(), make_data()
    make_trainer(max_epochs=4).fit(whole, make_data())
    trainer = make_trainer(max_epochs=2)
    trainer.fit(parts, data)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(parts, data)
    assert parts.steps == whole.steps
