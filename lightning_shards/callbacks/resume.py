"""Resume at the sample: from any checkpoint, with another batch size and another number of ranks.

Lightning saves how many batches it has trained, which says nothing once batches have another size,
and in some places it says the wrong thing even when they have not: it loses a validation that was
due, and with `max_steps` it resumes an epoch's end in the middle of that epoch. So `ExactResume`
saves what was trained, in samples, and before Lightning restores its counters it writes them anew.
"""

from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lightning_shards.callbacks.places import require_own_places
from lightning_shards.callbacks.resume_counters import (
    TrainerOverrides,
    leave_restart,
    override_trainer,
    write_counters,
)
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.progress import (
    EpochAnchor,
    FitPosition,
    TrainProgress,
    batches_seen,
    limit_of,
    train_loaders,
)
from lightning_shards.saved_state import (
    State,
    read_choice,
    read_count,
    reading_counters,
    require_same,
    require_state,
)

CHECKPOINT_VERSION = 1
"""Of what a checkpoint holds: plain values, equal on all ranks.

- ``epoch``, ``samples``: the cursor of the job. Samples of an accumulation window whose optimiser
  step was not taken are not in it: a checkpoint does not hold their gradients.
- ``ended``: how many epochs have ended; one less than ``epoch`` between the last batch of an epoch
  and its end.
- ``validation``: ``due`` after the last trained batch, ``done`` or ``none``.
- ``batches``: trained since the first epoch, whatever their size was.
- ``epoch_samples``, ``global_batch``: samples of an epoch, and of a step on all ranks.
- and the loader's identity: seed, sampling, shards, version of the order.
"""


class ExactResume(pl.Callback):
    """Makes a checkpoint resume with the next untrained sample, whatever the ranks and batch size.

    Add it to the callbacks of the run that saves and of the run that resumes; the data are those of
    a `ShardDataModule`. With N samples in an epoch, p of them trained and a new global batch G, an
    epoch still has N // G steps and this one (N - p) // G more. A validation that was due is run.
    Under ``sampling="resampled"`` by the stream reader the rest of the epoch is fresh draws.

    Attributes:
        translates_batches: whether a checkpoint with another global batch can be resumed from;
            False for one that was made without this callback.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.translates_batches = True
        self._loader: ShardLoader | None = None
        self._start: FitPosition | None = None
        self._overrides: TrainerOverrides | None = None
        self._is_cut_short = False
        self._due: tuple[int, int] | None = None  # epoch, and batches of it
        self._validated: tuple[int, int] | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Forget an earlier fit."""
        if stage == TrainerFn.FITTING.value:
            self._forget()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add our state; all ranks save the same."""
        watched = self._watched(trainer)
        if watched is None:
            return
        loader, progress = watched
        position, cursor = progress.position(loader), progress.trained(loader)
        here = (position.epoch, position.batches)
        validation = "none"
        if self._validated == here:
            validation = "done"
        elif self._due == here or progress.is_validation_due(position):
            validation = "due"
        state: State = {
            "version": CHECKPOINT_VERSION,
            "epoch": cursor.epoch,
            "samples": cursor.samples,
            "ended": position.epoch,
            "validation": validation,
            "batches": position.total,
            **loader.shape,
            **loader.identity,
        }
        checkpoint["callbacks"][self.state_key] = state

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write Lightning's counters for this run's batches, before Lightning restores them.

        Raises:
            StateError: the checkpoint is of other shards, another seed or order, or damaged.
        """
        if trainer.state.fn != TrainerFn.FITTING:
            return
        saved: object = checkpoint["callbacks"].get(self.state_key)
        self.translates_batches = saved is not None
        data = cast("Any", trainer).datamodule
        if data is None or (saved is None and not train_loaders(trainer)):
            return
        loader = data.train_dataloader()  # all ranks are here; Lightning gets the same one later
        progress = _progress_of(loader)
        if saved is None or progress is None:
            return
        state, fit_loop = _checked(loader, saved), _fit_loop_of(checkpoint)
        self._loader = loader
        limit = limit_of(trainer, len(loader))
        position = position_after(state, loader.epochs, loader.place.world_size, limit)
        cursor = Cursor(int(state["epoch"]), int(state["samples"]))
        is_open = cursor.epoch == position.epoch
        progress.anchor = EpochAnchor(cursor, position.batches if is_open else 0)
        steps = checkpoint["global_step"]
        write_counters(
            fit_loop,
            position,
            stepped=steps if pl_module.automatic_optimization else position.total,
            accumulate=trainer.accumulate_grad_batches,
        )
        self._begin_at(
            position, str(state["validation"]), is_cut_short=position.is_over and is_open
        )
        if steps == trainer.max_steps and (position.is_over or position.validation_due):
            self._overrides = TrainerOverrides(trainer)
        if trainer.strategy.restore_checkpoint_after_setup:
            self.on_fit_start(trainer, pl_module)  # it was before

    def _begin_at(self, position: FitPosition, validation: str, *, is_cut_short: bool) -> None:
        here = (position.epoch, position.batches)
        self._start, self._is_cut_short = position, is_cut_short
        self._due = here if position.validation_due else None
        self._validated = here if validation == "done" else None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """With `max_steps` reached Lightning returns at once, also when a validation is due.

        Not earlier: `configure_optimizers` looks at `max_steps`.
        """
        if self._overrides is not None:
            self._overrides.allow_end_of_epoch()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell Lightning what no counter can say."""
        require_own_places(trainer, train_loaders(trainer))
        if self._watched(trainer) is None:
            rank_zero_warn(
                "ExactResume() has nothing to watch: the one train loader of this fit must come "
                "from a ShardDataModule; its checkpoints do not say where it stands in samples. "
                "Fit with datamodule=, or leave the callback out"
            )
        if self._start is not None:
            self._overrides = self._overrides or TrainerOverrides(trainer)
            override_trainer(trainer, self._start, self._overrides, is_cut_short=self._is_cut_short)
            self._start = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember that this batch is validated; checkpoints of the same hook come later."""
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self._validated = batches_seen(trainer)
            self._end_overrides()
            leave_restart(trainer, after_validation=True)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """From the next epoch on nothing is resumed."""
        self._end_overrides()
        leave_restart(trainer)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Leave the trainer as it was."""
        self._end_overrides()

    def _end_overrides(self) -> None:
        if self._overrides is not None:
            self._overrides.end()

    def _watched(self, trainer: pl.Trainer) -> tuple[ShardLoader, TrainProgress] | None:
        """The train loader and its progress, when it is ours and the only one."""
        loaders: list[Any] = train_loaders(trainer) or [self._loader]
        progress = _progress_of(loaders[0])
        return (loaders[0], progress) if progress and len(loaders) == 1 else None


def _checked(loader: ShardLoader, saved: object) -> State:
    """The state of a checkpoint, if it is whole and of this run's data."""
    state = require_state(saved, ExactResume.__name__)
    identity = loader.identity | {"epoch_samples": loader.epochs.samples}
    require_same({"version": CHECKPOINT_VERSION, **identity}, state)
    epoch = read_count(state, "epoch")
    read_count(state, "ended", epoch, least=max(0, epoch - 1))
    read_count(state, "samples", loader.epochs.samples)
    read_count(state, "batches")
    read_choice(state, "validation", ("due", "done", "none"))
    return state


def _fit_loop_of(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Lightning's own state of its loop, in which the counters are written anew."""
    with reading_counters():
        fit_loop = checkpoint["loops"]["fit_loop"]
        fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"]
    return fit_loop


def _progress_of(loader: object) -> TrainProgress | None:
    progress = loader.progress if isinstance(loader, ShardLoader) else None
    return progress if isinstance(progress, TrainProgress) else None


def position_after(state: State, epochs: EpochSchedule, world_size: int, end: int) -> FitPosition:
    """Where a run of this world size and these epochs stands at the samples of a checkpoint.

    >>> state = {"epoch": 0, "samples": 18, "ended": 0, "batches": 9, "validation": "none"}
    >>> epochs = EpochSchedule(48, batch_size=5, remainder="drop")  # was: size 2, on one rank
    >>> tuple(position_after(state, epochs, world_size=1, end=9))   # (48 - 18) // 5 = 6 are left
    (0, 3, False, 9, False)

    Args:
        state: what `ExactResume` saved.
        epochs: how this run cuts epochs.
        world_size: ranks of this run.
        end: batches of an epoch that the trainer will run.
    """
    epoch = int(state["ended"])
    is_due = state["validation"] == "due"
    if int(state["epoch"]) > epoch:
        return FitPosition(epoch, end, True, int(state["batches"]), is_due)
    left = epochs.with_limit(end).steps(world_size, int(state["samples"]))
    is_over = left == 0
    is_due = is_due or (is_over and state["validation"] != "done")  # an epoch ends with one
    return FitPosition(epoch, end - left, is_over, int(state["batches"]), is_due)
