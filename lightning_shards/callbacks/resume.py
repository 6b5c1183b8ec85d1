"""The callback that resumes at the exact sample, also with other batch sizes and world sizes.

Lightning saves how many batches it has trained, which says nothing once batches have another size.
Even with the same size it is wrong in some cases: a validation that was due is lost, and with
`max_steps` the end of an epoch is resumed as its middle. So `ExactResume` saves the number of
trained samples, and rewrites Lightning's counters before Lightning restores them.

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
from contextlib import ExitStack
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_shards.callbacks.set_epoch import require_own_places
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor
from lightning_shards.progress import (
    EpochAnchor,
    FitPosition,
    TrainProgress,
    batches_seen,
    limit_of,
    restored_counters,
    train_loaders,
    validates_now,
)
from lightning_shards.stages import loaders_in
from lightning_shards.state import State, read_count, require_state, with_new_data


def write_counters(
    checkpoint: dict[str, Any],
    position: FitPosition,
    trainer: pl.Trainer,
    pl_module: pl.LightningModule,
) -> None:
    """Rewrite Lightning's counters in a checkpoint, in one of the four forms."""
    fit_loop = checkpoint["loops"]["fit_loop"]
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
    # all batches so far that an optimiser step followed, the x axis of loggers
    stepped = checkpoint["global_step"] if pl_module.automatic_optimization else position.total
    is_stepped = position.is_stepped(trainer.accumulate_grad_batches)
    if (is_within or position.validation_due) and is_stepped:
        stepped -= 1  # Lightning adds the last one when it restarts
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = stepped


def _counts(started: int, processed: int, completed: int) -> dict[str, int]:
    return {
        "ready": started, "started": started, "processed": processed, "completed": completed,
    }  # fmt: skip


def _make_validation_due(trainer: Any, undo: ExitStack) -> None:
    """Make Lightning validate now, although its own rule does not ask for it."""
    if sum(trainer.num_val_batches) == 0:
        return
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        trainer._last_val_time = float("-inf")  # noqa: SLF001 the clock starts again with the fit
        return
    loop, counts_all = trainer.fit_loop.epoch_loop, trainer.check_val_every_n_epoch is None
    undo.callback(setattr, trainer, "val_check_batch", trainer.val_check_batch)
    trainer.val_check_batch = (loop.total_batch_idx if counts_all else loop.batch_idx) + 1


class ExactResume(pl.Callback):
    """Resumes a checkpoint with the next untrained sample, whatever the ranks and batch size.

    Add it to the callbacks of the run that saves and of the run that resumes; the data must come
    from a `ShardDataModule`. With N samples in an epoch, p of them trained and a new global batch
    G, an epoch still has N // G steps, and this epoch has (N - p) // G steps left. A validation
    that was due is run. With ``sampling="resampled"`` and the stream reader, the rest of the epoch
    is drawn afresh.

    What it saves are plain values, equal on all ranks: those of `ShardLoader.state_dict`, and

    - ``ended``: how many epochs have ended; one less than ``epoch`` between the last batch of an
      epoch and its end.
    - ``validation``: whether the validation after the last trained batch is ``due``, ``done`` or
      ``none`` is planned.
    - ``batches``: batches trained since the first epoch, whatever their size was.

    Samples of an accumulation window whose optimiser step was not taken do not count as trained,
    because a checkpoint does not hold their gradients.

    Args:
        allow_new_data: Whether a checkpoint of an epoch's end may go on with other shards, more or
            fewer: counters and optimiser stay, and the next epoch is one of the new shards. The
            seed, the sampling and all that does not follow from the shards must be the same.

    Attributes:
        translates_batches: Whether a checkpoint with another global batch can be resumed; False
            for a checkpoint that was made without this callback.
    """

    def __init__(self, *, allow_new_data: bool = False) -> None:
        self.allow_new_data = allow_new_data
        self._forget()

    def _forget(self) -> None:
        self.translates_batches = True
        self._loader: ShardLoader | None = None
        self._has_begun = False
        self._start: FitPosition | None = None
        self._undo = ExitStack()
        self._is_past_max_steps = False
        self._is_cut_short = False
        self._due: tuple[int, int] | None = None  # the epoch, and its batches before the validation
        self._validated: tuple[int, int] | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Forget an earlier fit."""
        if stage == TrainerFn.FITTING.value:
            self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Nothing; by this method Lightning knows that a trainer can have only one of these."""
        return {}

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add our state to the checkpoint; it is equal on all ranks."""
        if (loader := self._watched(trainer)) is None:
            return
        progress = _progress_of(loader)
        position = progress.position(loader)
        here = (position.epoch, position.batches)
        validation = "none"
        if self._validated == here:
            validation = "done"
        elif self._due == here or progress.is_validation_due(position):
            validation = "due"
        fit = {"ended": position.epoch, "validation": validation, "batches": position.total}
        checkpoint["callbacks"][self.state_key] = loader.state_dict() | fit

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Rewrite Lightning's counters for this run's batches before Lightning restores them.

        Raises:
            StateError: The checkpoint is of other shards, another seed or order, or is damaged.
        """
        if trainer.state.fn != TrainerFn.FITTING or self._has_begun:
            return  # once a fit has begun, only a finder restores, and what this fit itself saved
        saved: object = checkpoint["callbacks"].get(self.state_key)
        self.translates_batches = saved is not None
        if saved is None:
            self._begin_next_epoch(trainer, pl_module, checkpoint)
        data = cast("Any", trainer).datamodule
        if data is None or (saved is None and not train_loaders(trainer)):
            return
        # on all ranks; Lightning gets the same loader later
        loader = _sole_loader(loaders_in(data.train_dataloader()))
        if saved is None or loader is None:
            return
        state, cursor = self._accepted(saved, loader, checkpoint)
        self._loader, limit = loader, limit_of(trainer, len(loader))
        position = position_after(state, loader.epochs, loader.place.world_size, limit)
        is_open = cursor.epoch == position.epoch
        anchor = EpochAnchor(cursor, position.batches if is_open else 0)
        _progress_of(loader).anchor = anchor
        write_counters(checkpoint, position, trainer, pl_module)
        rank_zero_info(
            f"ExactResume: goes on at sample {cursor.samples:,} of {loader.epochs.samples:,} in "
            f"epoch {cursor.epoch}, step {anchor.batches:,} of {limit:,}"
            f"{', after the validation that is due' * (state['validation'] == 'due')}"
        )
        self._begin_at(position, state["validation"], is_cut_short=position.is_over and is_open)
        is_at_end = position.is_over or position.validation_due
        self._is_past_max_steps = is_at_end and checkpoint["global_step"] == trainer.max_steps
        if trainer.strategy.restore_checkpoint_after_setup:
            self.on_fit_start(trainer, pl_module)  # Lightning called it before

    def _accepted(
        self, saved: object, loader: ShardLoader, checkpoint: dict[str, Any]
    ) -> tuple[State, Cursor]:
        """The state and its cursor, as those of this run's data where these may be others."""
        if self.allow_new_data:
            before = require_state(saved, type(self).__name__)
            saved = with_new_data(before, loader.shape | loader.identity)
            if saved != before:
                # Lightning would restore the loader of the other data
                checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)
                rank_zero_info(
                    f"ExactResume: epoch {saved['epoch']} is the first of other data: epochs of "
                    f"{saved['epoch_samples']} samples, before of {before.get('epoch_samples')}"
                )
        state, cursor = loader.read_state(saved, type(self).__name__)
        read_count(state, "ended", cursor.epoch, least=max(0, cursor.epoch - 1))
        read_count(state, "batches")
        return state, cursor

    def _begin_next_epoch(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep Lightning from leaving out an epoch after a checkpoint that has no state of ours."""
        restored = restored_counters(trainer)
        if restored.saved == "skipping":
            position = FitPosition(restored.epochs, 0, is_over=False, total=restored.total)
            write_counters(checkpoint, position, trainer, pl_module)
            self._begin_at(position, "none", is_cut_short=False)

    def _begin_at(self, position: FitPosition, validation: object, *, is_cut_short: bool) -> None:
        here = (position.epoch, position.batches)
        self._start, self._is_cut_short = position, is_cut_short
        self._due = here if validation == "due" else None
        self._validated = here if validation == "done" else None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let a fit with `max_steps` reached begin all the same if a validation is due.

        This must not come earlier, because `configure_optimizers` may read `max_steps`.
        """
        if self._is_past_max_steps:
            loop = cast("Any", trainer).fit_loop.epoch_loop
            self._undo.callback(setattr, loop, "max_steps", loop.max_steps)
            loop.max_steps += 1

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set up in Lightning what its counters cannot express."""
        require_own_places(trainer, train_loaders(trainer))
        if self._watched(trainer) is None:
            rank_zero_warn(
                "ExactResume() has nothing to watch: the one train loader of this fit must come "
                "from a ShardDataModule; its checkpoints do not say where it stands in samples. "
                "Fit with datamodule=, or leave the callback out"
            )
        self._has_begun = True
        if self._start is not None:
            self._override(trainer, self._start)
            self._start = None

    def _override(self, trainer: Any, position: FitPosition) -> None:
        """Change what the counters cannot express, after they are restored, before the first epoch.

        - With `max_steps`, Lightning would begin a new epoch in its middle.
        - If only the end of an epoch is left, Lightning would train one more batch.
        - A validation that was due after a batch of the old size may not be due at this batch.
        - If the change of the batch size ended the epoch, its schedulers have not been stepped.

        What is to be restored once the work that is due at the restart is done goes into `_undo`.
        """
        fit_loop, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
        if position.is_between_epochs:
            fit_loop._restarting = False  # noqa: SLF001 the property would set it again
            loop.restarting = False
        if self._is_cut_short:
            with warnings.catch_warnings():  # torch misses an optimiser step: before the restart
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        loop.val_loop.batch_progress.total.reset()
        if self._due is not None and not validates_now(trainer):
            _make_validation_due(trainer, self._undo)
        validates = position.validation_due and validates_now(trainer)
        if position.validation_due and not validates:
            loop._batches_that_stepped += position.is_stepped(trainer.accumulate_grad_batches)  # noqa: SLF001 no restart counts it
        if position.is_over and not validates:
            loop.val_loop._has_run = True  # noqa: SLF001 what Lightning asks, or it trains one batch more
            self._undo.callback(setattr, loop.val_loop, "_has_run", False)
        if not (position.is_over or (validates and sum(trainer.num_val_batches))):
            self._undo.close()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember the loader of this epoch; it may be another one than that of the last."""
        self._watched(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember that this batch is validated, before the same hook saves checkpoints."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self._validated = batches_seen(trainer)
            self._undo.close()
            # while it restarts Lightning steps no scheduler that waits for a metric, as is here now
            fit_loop = cast("Any", trainer).fit_loop
            if fit_loop.epoch_loop.batch_progress.is_last_batch:
                fit_loop._restarting = False  # noqa: SLF001 as above

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the resume: from the next epoch on Lightning counts by itself."""
        self._undo.close()
        loop = trainer.fit_loop.epoch_loop
        loop.restarting = False
        loop.reset_restart_stage()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Restore the trainer's own settings, and remember a validation that was due.

        Lightning then drops what its rule for it reads, and a checkpoint may be saved later.
        """
        loader = self._watched(trainer) if self._has_begun else None
        if loader is not None:
            progress = _progress_of(loader)
            position = progress.position(loader)
            if progress.is_validation_due(position):
                self._due = (position.epoch, position.batches)
        self._undo.close()

    def _watched(self, trainer: pl.Trainer) -> ShardLoader | None:
        """The train loader, if it is ours and the only one.

        It is kept, because Lightning forgets it when it validates, tests or predicts.
        """
        if loaders := train_loaders(trainer):
            self._loader = _sole_loader(loaders)
        return self._loader


def _sole_loader(loaders: list[Any]) -> ShardLoader | None:
    """The loader, if it is the only one and of a data module of ours."""
    if len(loaders) != 1 or not isinstance(loaders[0], ShardLoader):
        return None
    return loaders[0] if isinstance(loaders[0].progress, TrainProgress) else None


def _progress_of(loader: ShardLoader) -> TrainProgress:
    return cast("TrainProgress", loader.progress)


def position_after(state: State, epochs: EpochSchedule, world_size: int, end: int) -> FitPosition:
    """The fit position of a run with this world size and schedule at the cursor of a checkpoint.

    >>> state = {"epoch": 0, "samples": 18, "ended": 0, "batches": 9, "validation": "none"}
    >>> epochs = EpochSchedule(48, batch_size=5, remainder="drop")  # was: size 2, on one rank
    >>> tuple(position_after(state, epochs, world_size=1, end=9))   # (48 - 18) // 5 = 6 are left
    (0, 3, False, 9, False)

    Args:
        state: What `ExactResume` saved.
        epochs: The schedule of this run's epochs.
        world_size: Number of ranks of this run.
        end: Batches of an epoch that the trainer will run.
    """
    epoch = int(state["ended"])
    is_due = state["validation"] == "due"
    if int(state["epoch"]) > epoch:
        return FitPosition(epoch, end, True, int(state["batches"]), is_due)
    left = epochs.with_limit(end).steps(world_size, int(state["samples"]))
    is_over = left == 0
    # Lightning's own rule says, once the fit has begun, whether an epoch ends with a validation.
    is_due = is_due or (is_over and state["validation"] != "done")
    return FitPosition(epoch, end - left, is_over, int(state["batches"]), is_due)
