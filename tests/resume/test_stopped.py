"""Fits that end in the middle of an epoch: whatever stops them, a resume loses and repeats nothing.

Lightning counts the epoch as done where `max_steps`, a callback or a signal ended the fit.
"""

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from toy import (
    Ledger,
    Snapshots,
    StopHereError,
    StopsAt,
    ToyData,
    bare_trainer,
    make_trainer,
    positions_of,
    resumed,
    saved_by_step,
)

WHOLE = {epoch: list(range(24)) for epoch in range(3)}  # 26 samples in steps of 4


def sent(number: signal.Signals) -> Callable[[pl.Trainer], None]:
    return lambda _: signal.raise_signal(number)


def raised(trainer: pl.Trainer) -> None:
    raise StopHereError


class Saver(ModelCheckpoint):
    """Keeps all it saves, beside others of its kind."""

    @property
    def state_key(self) -> str:
        return str(self.dirpath)


class SkipsRest(Ledger):
    """Ends its second epoch after two batches, and goes on with the next one."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if (self.current_epoch, batch_idx) == (1, 2) else None


STOPS: dict[str, Callable[[], Any]] = {
    "within an epoch": lambda: StopsAt(("on_train_batch_end", 7)),
    "before the fit": lambda: StopsAt(("on_train_start", 0)),
    "at its end": lambda: StopsAt(("on_train_batch_end", 11)),
    "EarlyStopping": lambda: EarlyStopping("val", patience=2, mode="max"),  # the third validation
    "SIGINT": lambda: StopsAt(("on_train_batch_end", 7), sent(signal.SIGINT)),
    "SIGTERM": lambda: StopsAt(("on_train_batch_end", 7), sent(signal.SIGTERM)),
    "SIGTERM in a validation": lambda: StopsAt(("on_validation_start", 2), sent(signal.SIGTERM)),
}
SAVERS: dict[str, dict[str, Any]] = {
    "steps": {"every_n_train_steps": 1},
    "epochs": {"save_on_train_epoch_end": True},
    "validations": {"save_on_train_epoch_end": False},
}


@pytest.fixture
def _own_signals():
    """The handlers of signals that were there before: Lightning leaves SIGINT ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def checkpoints_of_a_stopped_fit(folder: Path, stop: Any, **options: Any) -> dict[str, Path]:
    """The last checkpoint of each kind that the fit has left."""
    savers = {name: Saver(folder / name, save_top_k=-1, **kind) for name, kind in SAVERS.items()}
    callbacks = [stop, *savers.values(), OnExceptionCheckpoint(folder, "exception")]
    trainer = make_trainer(folder, callbacks, **options)
    with contextlib.suppress(SystemExit, SIGTERMException):
        trainer.fit(Ledger(), ToyData())
    trainer.save_checkpoint(folder / "by_hand.ckpt")
    found = {name: Path(saver.best_model_path) for name, saver in savers.items()}
    found |= {name: folder / f"{name}.ckpt" for name in ("exception", "by_hand")}
    return {name: path for name, path in found.items() if path.is_file()}


@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize(
    ("stop", "max_steps"),
    [*((stop, -1) for stop in STOPS), *((stop, 50) for stop in ("within an epoch", "at its end"))],
)
def test_a_fit_goes_on_with_the_next_sample_after_any_stop(stop, max_steps, tmp_path):
    options = {"val_check_interval": 0.5, "max_epochs": 3, "max_steps": max_steps}
    saved = checkpoints_of_a_stopped_fit(tmp_path, STOPS[stop](), **options)
    models = {name: resumed(tmp_path, path, **options) for name, path in saved.items()}
    trained = {name: positions_of(model.steps) for name, model in models.items()}
    assert trained == dict.fromkeys(saved, WHOLE)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize(
    ("times", "stop", "make"),
    [
        (1, ("on_train_batch_start", 4), bare_trainer),
        (1, ("on_train_epoch_start", 1), make_trainer),
        (2, ("on_train_batch_start", 9), make_trainer),
    ],
)
def test_the_ends_of_epochs_are_known_after_an_interrupted_fit(times, stop, make, tmp_path):
    """The same trainer goes on; all its checkpoints of ends of epochs are resumed."""
    saver = ModelCheckpoint(
        tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True
    )
    stops = [StopsAt(stop, raised) for _ in range(times)]
    trainer = make(tmp_path, callbacks=[saver, *stops], max_epochs=3)
    for _ in range(times):
        with pytest.raises(StopHereError):
            trainer.fit(Ledger(), ToyData())
    trainer.fit(Ledger(), ToyData())
    trained = {}
    for done in (1, 2, 3):
        path = tmp_path / f"epoch={done - 1}.ckpt"
        found = positions_of(resumed(tmp_path, path, make=make, max_epochs=4).steps)
        trained[done] = {epoch: found.get(epoch) for epoch in range(done, 4)}
    assert trained == {done: dict.fromkeys(range(done, 4), WHOLE[0]) for done in trained}


@pytest.mark.parametrize("make", [make_trainer, bare_trainer])
def test_the_epoch_after_a_checkpoint_of_a_last_batch_is_known_to_be_open(make, tmp_path):
    """Lightning goes on from one without a state of ours and does not count that epoch."""
    path = saved_by_step(tmp_path, every=6, make=bare_trainer, max_epochs=1)[6]
    savers = [
        Saver(tmp_path / "steps", "{step}", every_n_train_steps=2, save_top_k=-1),
        Saver(tmp_path / "epochs", "{epoch}", save_on_train_epoch_end=True, save_top_k=-1),
    ]
    second = make(tmp_path, callbacks=savers, max_epochs=3)
    second.fit(Ledger(), ToyData(), ckpt_path=path)
    saved = sorted(tmp_path.glob("*/*.ckpt"))
    trained = {path: positions_of(resumed(tmp_path, path, make=make).steps) for path in saved}
    assert trained == dict.fromkeys(saved, WHOLE)


@pytest.mark.parametrize("saved_by", ["epochs", "by_hand"])
@pytest.mark.parametrize("estimates", [False, True])
def test_no_epoch_is_left_out_after_a_checkpoint_that_only_the_resumed_run_understands(
    saved_by, tmp_path, *, estimates
):
    """With `max_steps` Lightning would count the next epoch as done; stopped in it, and resumed."""
    options = {"max_epochs": 3, "max_steps": 50, "enable_checkpointing": False}
    saver = ModelCheckpoint(tmp_path, "epochs")
    first = bare_trainer(tmp_path, callbacks=[saver], max_epochs=1)
    first.fit(Ledger(), ToyData())
    first.save_checkpoint(tmp_path / "by_hand.ckpt")
    second = make_trainer(tmp_path, [StopsAt(("on_train_batch_end", 2))], **options)
    model = Ledger(estimates=estimates)
    second.fit(model, ToyData(), ckpt_path=tmp_path / f"{saved_by}.ckpt")
    second.save_checkpoint(tmp_path / "second.ckpt")
    assert positions_of(model.steps) == {0: WHOLE[0], 1: list(range(12))}
    make_trainer(tmp_path, **options).fit(model, ToyData(), ckpt_path=tmp_path / "second.ckpt")
    assert positions_of(model.steps) == WHOLE


def test_a_rest_of_an_epoch_that_the_model_skips_is_not_trained_later(tmp_path):
    trainer = make_trainer(tmp_path, [StopsAt(("on_train_epoch_end", 1))])
    trainer.fit(SkipsRest(), ToyData())
    trainer.save_checkpoint(tmp_path / "skipped.ckpt")
    model = resumed(tmp_path, tmp_path / "skipped.ckpt", model=SkipsRest())
    assert positions_of(model.steps) == WHOLE | {1: list(range(8))}


@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize(
    ("stop", "how"),
    [(("on_train_batch_end", 2), sent(signal.SIGINT)), (("on_validation_start", 0), raised)],
    ids=["SIGINT", "error"],
)
def test_a_validation_is_due_after_an_error_that_came_before_it(stop, how, tmp_path):
    """The checkpoint is saved when Lightning has ended the fit, by who caught the error."""
    options = {"val_check_interval": 3, "enable_checkpointing": False}
    trainer = make_trainer(tmp_path, [StopsAt(stop, how)], **options)
    with contextlib.suppress(StopHereError, SystemExit):
        trainer.fit(Ledger(), ToyData())
    trainer.save_checkpoint(tmp_path / "by_hand.ckpt")
    model = resumed(tmp_path, tmp_path / "by_hand.ckpt", val_check_interval=3)
    assert [steps for _, steps, _ in model.validations] == [3, 6, 9, 12, 15, 18]
    assert positions_of(model.steps) == WHOLE


@pytest.mark.parametrize("sanity", [0, 2])
def test_a_validation_that_a_kill_cut_off_is_made_up_for_in_the_first_epoch_that_has_one(
    sanity, tmp_path
):
    """Without a sanity check Lightning sees the validation loader at that epoch's end first."""
    options = {"check_val_every_n_epoch": 2, "num_sanity_val_steps": sanity, "max_epochs": 4}
    saver = Saver(tmp_path / "steps", save_top_k=-1, every_n_train_steps=1)
    stop = Snapshots(tmp_path, ("on_validation_start", 0))
    with pytest.raises(StopHereError):
        make_trainer(tmp_path, [saver, stop], **options).fit(Ledger(), ToyData())
    model = resumed(tmp_path, saver.best_model_path, **options)
    assert [epoch for epoch, *_ in model.validations] == [1, 3]
    assert positions_of(model.steps) == dict.fromkeys(range(4), WHOLE[0])
