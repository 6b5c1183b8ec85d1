"""How a restart is told to Lightning: by its counters, and by settings for what they cannot say.

The counters are written into a checkpoint, before Lightning restores it, in one of four forms::

    form              epochs ready, started   processed, completed   batches of the epoch
    between epochs                        e   e                      0
    within an epoch                   e + 1   e                      b, completed b - 1
    validation due                    e + 1   e                      b
    only its end left                 e + 1   e                      n, the last one

Lightning takes the second for a checkpoint from the end of a training batch whose validation, if
there was one, has run. In the third its counters say that a validation was begun and not finished.
"""

import warnings
from typing import Any

from lightning_shards.progress import FitPosition, validates_now


def write_counters(
    fit_loop: dict[str, Any], position: FitPosition, stepped: int, accumulate: int
) -> None:
    """Make the saved state of a fit loop say where it stands, in one of the four forms.

    Args:
        fit_loop: the state in a checkpoint, changed in place.
        position: what it shall say.
        stepped: batches ever that an optimiser step followed, the x axis of loggers.
        accumulate: batches in an accumulation window.
    """
    begun = position.epoch + (not position.is_between_epochs)
    epochs = _counts(begun, position.epoch, position.epoch)
    is_within = not (position.is_over or position.validation_due or position.is_between_epochs)
    batches = _counts(position.batches, position.batches, position.batches - is_within)
    total = _counts(position.total, position.total, position.total - is_within)
    unfinished = _counts(1, 0, 0) if position.validation_due else _counts(0, 0, 0)
    fit_loop["epoch_progress"] = {"total": epochs, "current": dict(epochs)}
    fit_loop["epoch_loop.batch_progress"] = {
        "total": total, "current": batches, "is_last_batch": position.is_over,
    }  # fmt: skip
    fit_loop["epoch_loop.val_loop.batch_progress"] = {
        "total": unfinished, "current": _counts(0, 0, 0), "is_last_batch": False,
    }  # fmt: skip
    if (is_within or position.validation_due) and position.is_stepped(accumulate):
        stepped -= 1  # Lightning counts the last one when it restarts
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = stepped


def _counts(started: int, processed: int, completed: int) -> dict[str, int]:
    return {
        "ready": started, "started": started, "processed": processed, "completed": completed,
    }  # fmt: skip


class TrainerOverrides:
    """Settings of a trainer that are others until what was due at the restart is done."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._max_steps: int | None = None
        self._val_check_batch: float | None = None
        self._skips_validation = False

    def allow_end_of_epoch(self) -> None:
        """Let a fit begin that has all its `max_steps`, but not the validation that was due."""
        loop = self._trainer.fit_loop.epoch_loop
        self._max_steps = loop.max_steps
        loop.max_steps += 1

    def make_validation_due(self) -> None:
        """Let Lightning validate after a batch that its own rule does not name."""
        trainer: Any = self._trainer
        if sum(trainer.num_val_batches) == 0:
            return
        if getattr(trainer, "_val_check_time_interval", None) is not None:
            trainer._last_val_time = float("-inf")  # noqa: SLF001 the clock starts anew with the fit
            return
        loop, self._val_check_batch = trainer.fit_loop.epoch_loop, trainer.val_check_batch
        counts_all = trainer.check_val_every_n_epoch is None
        trainer.val_check_batch = (loop.total_batch_idx if counts_all else loop.batch_idx) + 1

    def skip_validation(self) -> None:
        """Let Lightning take an epoch for done; else it would train one batch more."""
        self._trainer.fit_loop.epoch_loop.val_loop._has_run = True  # noqa: SLF001 what it asks
        self._skips_validation = True

    def end(self) -> None:
        """Give the trainer its own settings back."""
        if self._skips_validation:
            self._trainer.fit_loop.epoch_loop.val_loop._has_run = False  # noqa: SLF001 as above
            self._skips_validation = False
        if self._max_steps is not None:
            self._trainer.fit_loop.epoch_loop.max_steps = self._max_steps
        if self._val_check_batch is not None:
            self._trainer.val_check_batch = self._val_check_batch
        self._max_steps = self._val_check_batch = None


def override_trainer(
    trainer: Any, position: FitPosition, overrides: TrainerOverrides, *, is_cut_short: bool
) -> None:
    """After Lightning has restored the counters, and before its first epoch: what they cannot say.

    With `max_steps` a fit begins the epoch in the middle that it should begin anew. An epoch whose
    end alone is left would train one batch more. A validation that was due after a batch of another
    size is not due at this one. An epoch that the change of the batch size ended (`is_cut_short`)
    did not step its schedulers.
    """
    fit_loop, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    if position.is_between_epochs:
        fit_loop._restarting = False  # noqa: SLF001 the property would set it again
        loop.restarting = False
    if is_cut_short:
        with warnings.catch_warnings():  # torch wants an optimiser step first; there was, before
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
    loop.val_loop.batch_progress.total.reset()
    if position.validation_due and not validates_now(trainer):
        overrides.make_validation_due()
    validates = position.validation_due and validates_now(trainer)
    if position.validation_due and not validates:
        loop._batches_that_stepped += position.is_stepped(trainer.accumulate_grad_batches)  # noqa: SLF001 no restart counts it
    if position.is_over and not validates:
        overrides.skip_validation()
    if not (position.is_over or (validates and sum(trainer.num_val_batches))):
        overrides.end()


def leave_restart(trainer: Any, *, after_validation: bool = False) -> None:
    """The first epoch of a resumed fit is at its end: nothing is restarted from here on.

    Lightning does not step schedulers that wait for a metric while it restarts; after a validation
    the metric is there.
    """
    loop = trainer.fit_loop.epoch_loop
    if not after_validation:
        loop.restarting = False
        loop.reset_restart_stage()
    elif loop.batch_progress.is_last_batch:
        trainer.fit_loop._restarting = False  # noqa: SLF001 as in settle
