"""The writer of Lightning's counters for a restart, and trainer overrides for the rest.

The counters are written into a checkpoint before Lightning restores it, in one of four forms::

    form              epochs ready, started   processed, completed   batches of the epoch
    between epochs                        e   e                      0
    within an epoch                   e + 1   e                      b, completed b - 1
    validation due                    e + 1   e                      b
    only its end left                 e + 1   e                      n, the last one

Lightning reads the second form as a checkpoint from the end of a training batch whose validation,
if there was one, has run. In the third form a validation was begun and not finished.
"""

import warnings
from typing import Any

from lightning_shards.progress import FitPosition, validates_now


def write_counters(
    fit_loop: dict[str, Any], position: FitPosition, stepped: int, accumulate: int
) -> None:
    """Write a fit position into the saved state of a fit loop, in one of the four forms.

    Args:
        fit_loop: The state in a checkpoint, changed in place.
        position: The fit position to write.
        stepped: All batches so far that an optimiser step followed, the x axis of loggers.
        accumulate: Batches in an accumulation window.
    """
    begun = position.epoch + (not position.is_between_epochs)
    epochs = _counts(begun, position.epoch, position.epoch)
    is_last = position.is_over or position.is_between_epochs
    is_within = not (is_last or position.validation_due)
    batches = _counts(position.batches, position.batches, position.batches - is_within)
    total = _counts(position.total, position.total, position.total - is_within)
    unfinished = _counts(1, 0, 0) if position.validation_due else _counts(0, 0, 0)
    fit_loop["epoch_progress"] = {"total": epochs, "current": dict(epochs)}
    fit_loop["epoch_loop.batch_progress"] = {
        "total": total, "current": batches, "is_last_batch": is_last,
    }  # fmt: skip
    fit_loop["epoch_loop.val_loop.batch_progress"] = {
        "total": unfinished, "current": _counts(0, 0, 0), "is_last_batch": False,
    }  # fmt: skip
    if (is_within or position.validation_due) and position.is_stepped(accumulate):
        stepped -= 1  # Lightning adds the last one when it restarts
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = stepped


def _counts(started: int, processed: int, completed: int) -> dict[str, int]:
    return {
        "ready": started, "started": started, "processed": processed, "completed": completed,
    }  # fmt: skip


class TrainerOverrides:
    """Settings of a trainer that are changed until the work due at the restart is done."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._max_steps: int | None = None
        self._val_check_batch: float | None = None
        self._skips_validation = False

    def allow_end_of_epoch(self) -> None:
        """Let a fit begin that has reached `max_steps` and still owes a validation."""
        loop = self._trainer.fit_loop.epoch_loop
        self._max_steps = loop.max_steps
        loop.max_steps += 1

    def make_validation_due(self) -> None:
        """Make Lightning validate now, although its own rule does not ask for it."""
        trainer: Any = self._trainer
        if sum(trainer.num_val_batches) == 0:
            return
        if getattr(trainer, "_val_check_time_interval", None) is not None:
            trainer._last_val_time = float("-inf")  # noqa: SLF001 the clock starts again with the fit
            return
        loop, self._val_check_batch = trainer.fit_loop.epoch_loop, trainer.val_check_batch
        counts_all = trainer.check_val_every_n_epoch is None
        trainer.val_check_batch = (loop.total_batch_idx if counts_all else loop.batch_idx) + 1

    def skip_validation(self) -> None:
        """Make Lightning treat an epoch as done; otherwise it would train one more batch."""
        self._trainer.fit_loop.epoch_loop.val_loop._has_run = True  # noqa: SLF001 what it asks
        self._skips_validation = True

    def end(self) -> None:
        """Restore the trainer's own settings."""
        if self._skips_validation:
            self._trainer.fit_loop.epoch_loop.val_loop._has_run = False  # noqa: SLF001 as above
            self._skips_validation = False
        if self._max_steps is not None:
            self._trainer.fit_loop.epoch_loop.max_steps = self._max_steps
        if self._val_check_batch is not None:
            self._trainer.val_check_batch = self._val_check_batch
        self._max_steps = self._val_check_batch = None


def override_trainer(
    trainer: Any,
    position: FitPosition,
    overrides: TrainerOverrides,
    *,
    is_cut_short: bool,
    is_due: bool,
) -> None:
    """Change what the counters cannot express, after they are restored and before the first epoch.

    - With `max_steps`, Lightning would begin a new epoch in its middle.
    - If only the end of an epoch is left, Lightning would train one more batch.
    - A validation that was due after a batch of the old size (`is_due`) may not be due at this
      batch.
    - If the change of the batch size ended the epoch (`is_cut_short`), its schedulers have not been
      stepped.
    """
    fit_loop, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    if position.is_between_epochs:
        fit_loop._restarting = False  # noqa: SLF001 the property would set it again
        loop.restarting = False
    if is_cut_short:
        with warnings.catch_warnings():  # torch misses an optimiser step: it was before the restart
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
    loop.val_loop.batch_progress.total.reset()
    if is_due and not validates_now(trainer):
        overrides.make_validation_due()
    validates = position.validation_due and validates_now(trainer)
    if position.validation_due and not validates:
        loop._batches_that_stepped += position.is_stepped(trainer.accumulate_grad_batches)  # noqa: SLF001 no restart counts it
    if position.is_over and not validates:
        overrides.skip_validation()
    if not (position.is_over or (validates and sum(trainer.num_val_batches))):
        overrides.end()


def leave_restart(trainer: Any, *, after_validation: bool = False) -> None:
    """End Lightning's restart, at the end of the first epoch of a resumed fit.

    Lightning does not step schedulers that wait for a metric while it restarts; after a validation
    the metric is available.
    """
    loop = trainer.fit_loop.epoch_loop
    if not after_validation:
        loop.restarting = False
        loop.reset_restart_stage()
    elif loop.batch_progress.is_last_batch:
        trainer.fit_loop._restarting = False  # noqa: SLF001 as in override_trainer
