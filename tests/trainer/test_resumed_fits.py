"""Fits that go on from a checkpoint, and checkpoints that are refused."""

from typing import Any

import pytest
from fit_recorder import STEPS, VAL, EstimatingRecorder, Recorder, Saver, all_ids

from lightning_shards import Cursor
from lightning_shards.errors import StateError

pytestmark = pytest.mark.usefixtures("held_fork_server")


@pytest.fixture(scope="module")
def checkpoints(make_data, make_trainer, tmp_path_factory):
    """A whole run of 3 epochs: its record, and checkpoints by name."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = Recorder()
    by_step = Saver(folder, "step-{step}", every_n_train_steps=4)
    by_last_step = Saver(folder, "last-{step}", every_n_train_steps=STEPS)
    by_epoch = Saver(folder, "epoch-{epoch}")
    make_trainer(callbacks=[by_step, by_last_step, by_epoch]).fit(model, make_data())
    by_validation = Saver(folder / "more", "validated-{step}", save_on_train_epoch_end=False)
    make_trainer(max_epochs=1, callbacks=[by_validation]).fit(Recorder(), make_data())
    return {"model": model} | {path.stem: path for path in folder.rglob("*.ckpt")}


@pytest.mark.parametrize(
    ("step", "kind", "options"),
    [
        (4, Recorder, {"max_steps": 30, "max_epochs": -1}),
        (12, EstimatingRecorder, {}),
        (20, Recorder, {}),
        (20, EstimatingRecorder, {"max_steps": 30, "max_epochs": -1}),
    ],
)
def test_a_resumed_fit_takes_the_steps_that_are_left(
    step, kind, options, checkpoints, make_data, make_trainer
):
    model, trainer = kind(), make_trainer(**options)
    trainer.fit(model, make_data(), ckpt_path=checkpoints[f"step-step={step}"])
    done = [(epoch, batch) for epoch, batch, _ in checkpoints["model"].steps]
    assert [(epoch, batch) for epoch, batch, _ in model.steps] == done[step:]
    assert trainer.global_step == 3 * STEPS


def test_a_fit_resumed_at_an_epochs_end_goes_on_as_if_it_had_never_stopped(
    checkpoints, make_data, make_trainer
):
    model, data = Recorder(), make_data()
    make_trainer().fit(model, data, ckpt_path=checkpoints["epoch-epoch=0"])
    assert model.steps == checkpoints["model"].steps[STEPS:]
    assert len(model.validations) == 2
    assert data.starts["train"] == [Cursor(1, 0)]


def test_a_fit_resumed_after_a_validation_takes_the_steps_and_validations_that_are_left(
    make_data, make_trainer, tmp_path
):
    """Two validations an epoch, and a checkpoint after each of them."""
    whole, resumed = Recorder(), Recorder()
    saver = Saver(tmp_path, "{step}", save_on_train_epoch_end=False)
    options = {"limit_train_batches": 8, "val_check_interval": 4}
    make_trainer(callbacks=[saver], **options).fit(whole, make_data())
    make_trainer(**options).fit(resumed, make_data(), ckpt_path=tmp_path / "step=12.ckpt")
    assert [numbers[:2] for numbers in resumed.steps] == [
        numbers[:2] for numbers in whole.steps[12:]
    ]
    assert resumed.validations == [all_ids(VAL)] * 3


def test_a_stream_that_serves_each_sample_once_cannot_be_resumed_within_an_epoch_and_says_so(
    make_data, make_trainer, tmp_path
):
    exact = {"sampling": "shuffled", "reader": "stream"}
    saver = Saver(tmp_path / "saved", "{step}", every_n_train_steps=4)
    make_trainer(max_steps=4, callbacks=[saver]).fit(Recorder(), make_data(**exact))
    with pytest.raises(StateError, match=r"8 samples into an epoch.*sampling='resampled'"):
        make_trainer().fit(
            Recorder(), make_data(**exact), ckpt_path=tmp_path / "saved" / "step=4.ckpt"
        )


class Stopping(Recorder):
    """Ends its fit in the middle of its second epoch."""

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.trainer.should_stop = self.trainer.global_step == STEPS + 4


@pytest.mark.parametrize(
    ("stopped", "saved_by", "kind", "options"),
    [
        ({"max_steps": STEPS + 4}, "hand", Recorder, {"max_epochs": 3}),
        ({"max_steps": STEPS + 4}, "epoch", EstimatingRecorder, {"max_steps": 30}),
        ({}, "hand", EstimatingRecorder, {"max_epochs": 3}),
        ({}, "epoch", Recorder, {"max_steps": 30}),
    ],
)
def test_a_fit_that_leaves_out_the_rest_of_an_epoch_warns_of_it(
    stopped, saved_by, kind, options, make_data, make_trainer, tmp_path
):
    """Lightning counts an epoch that `max_steps` or `should_stop` cut as done."""
    first = make_trainer(callbacks=[Saver(tmp_path, "epoch-{step}")], **stopped)
    first.fit(Recorder() if stopped else Stopping(), make_data())
    first.save_checkpoint(tmp_path / "hand-step=14.ckpt")
    model, second = kind(), make_trainer(**options)
    with pytest.warns(UserWarning, match=r"ended after batch 4 of an epoch, before its end"):
        second.fit(model, make_data(), ckpt_path=tmp_path / f"{saved_by}-step=14.ckpt")
    assert len(model.steps) == (STEPS if "max_epochs" in options else 30 - STEPS - 4)


@pytest.mark.parametrize("kind", [Recorder, EstimatingRecorder])
def test_a_fit_with_max_steps_that_leaves_out_the_epoch_after_its_checkpoint_warns_of_it(
    kind, checkpoints, make_data, make_trainer
):
    model, path = kind(), checkpoints["epoch-epoch=0"]
    with pytest.warns(UserWarning, match=r"of an epoch's end, and with max_steps .* none of it"):
        make_trainer(max_steps=2 * STEPS).fit(model, make_data(), ckpt_path=path)
    assert [ids for _, _, ids in model.steps] == checkpoints["model"].epochs()[2]


@pytest.mark.parametrize(
    ("step", "lost", "kind"),
    [(12, 2, Recorder), (4, 1, EstimatingRecorder), (20, 0, Recorder)],
)
def test_a_fit_that_loses_the_gradients_of_an_open_window_warns_of_it(
    step, lost, kind, checkpoints, make_data, make_trainer, recwarn
):
    """Checkpoints after batches 2 and 4 of an epoch, and one of an epoch's end."""
    trainer = make_trainer(accumulate_grad_batches=3)
    trainer.fit(kind(), make_data(), ckpt_path=checkpoints[f"step-step={step}"])
    told = [str(warning.message) for warning in recwarn if "gradients" in str(warning.message)]
    assert len(told) == bool(lost)
    assert all("within a window of accumulate_grad_batches=3: it does" in each for each in told)
    assert all(f"gradients of the last {lost} of them" in each for each in told)


@pytest.mark.parametrize(("limit", "kind"), [(3, Recorder), (4, EstimatingRecorder)])
def test_an_epoch_that_ends_before_the_checkpoint_now_is_not_trained_again(
    limit, kind, checkpoints, make_data, make_trainer
):
    trainer = make_trainer(limit_train_batches=limit)
    with pytest.raises(StateError, match=f"after batch 4 of an epoch, whose end is now at {limit}"):
        trainer.fit(kind(), make_data(), ckpt_path=checkpoints["step-step=4"])
