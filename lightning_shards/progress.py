"""Where a fit stands or goes on: the only reader of Lightning's progress counters.

They are read when the first batch of an iteration is requested. By then Lightning has restored and
reset them; hooks run too early or, on a resume, not at all.
"""

import signal
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
)
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_shards.errors import ConfigError, StateError
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.state import (
    TRANSLATE,
    WEIGHTS_ALONE,
    State,
    require_same,
    require_state,
    with_new_data,
)
from lightning_shards.system.process import Cancellable, DeferredSignal


class RestoredCounters(NamedTuple):
    """The position in a checkpoint by Lightning's own counters.

    Attributes:
        epochs: Epochs that count as done.
        batches: Batches of its epoch that are trained.
        total: Batches of all epochs.
        saved: When it was saved: at the end of a batch ``within`` an epoch; in a ``validation``
            within one; or after an epoch that counts as done: one that was ``cut`` off with batches
            left, as where `max_steps` or a callback ended the fit; one after which Lightning is
            ``skipping`` the next, which it will count as done, too, as it does with `max_steps`
            after a whole epoch; or its ``end``.
        is_restarting: Whether Lightning goes on with this count of batches.
        loader: The state of its loader, if Lightning saved it.
    """

    epochs: int
    batches: int
    total: int
    saved: Literal["within", "validation", "cut", "skipping", "end"]
    is_restarting: bool
    loader: State

    @property
    def is_over(self) -> bool:
        """Whether Lightning counts the epoch as done."""
        return self.saved not in ("within", "validation")


def restored_counters(trainer: Any) -> RestoredCounters:
    """The counters of a checkpoint that is resumed; zeros if the fit starts from the beginning.

    If Lightning estimates the steps of a fit, it requests the loader before it restores its
    counters; they are then read from the checkpoint itself.
    """
    fit_loop, checkpoint = trainer.fit_loop, trainer._checkpoint_connector._loaded_checkpoint  # noqa: SLF001 empty once it is restored
    if checkpoint:
        fit = checkpoint["loops"]["fit_loop"]
        epochs, batch = fit["epoch_progress"]["current"], fit["epoch_loop.batch_progress"]
        states = fit["state_dict"].get("combined_loader")
    else:
        epochs = fit_loop.epoch_progress.current.state_dict()
        batch = fit_loop.epoch_loop.batch_progress.state_dict()
        states = fit_loop._combined_loader_states_to_load  # noqa: SLF001 for the loader that is asked for
    done, is_open = epochs["processed"], epochs["ready"] != epochs["processed"]
    batches, total = batch["current"]["processed"], batch["total"]["processed"]
    steps = checkpoint["global_step"] if checkpoint else trainer.global_step
    is_finished = done >= trainer.max_epochs != -1 or steps >= trainer.max_steps != -1
    by_steps = fit_loop._iteration_based_training()  # noqa: SLF001 as its `restarting`
    is_restarting = is_open or by_steps if checkpoint else fit_loop.restarting
    saved: Any = "end"
    if is_open and not batch["is_last_batch"]:
        saved = "within" if batch["total"]["completed"] < total else "validation"
    elif done and not is_open and not batch["is_last_batch"]:
        saved = "cut"
    elif done and not is_open and batches and is_restarting and not is_finished:
        # no batches: ExactResume wrote them; in the middle: it goes on after a last batch
        saved = "end" if fit_loop.restarted_mid_epoch else "skipping"
    loader = require_state(states[0], "the train loader") if states else {}
    return RestoredCounters(done, batches, total, saved, is_restarting, loader)


def require_no_finder(trainer: Any) -> None:
    """Refuse a finder of Lightning's that saves before a resumed fit has its counters back.

    It restores what it has saved, and Lightning then takes the fit for restored.

    Raises:
        StateError: There is one.
    """
    if trainer is None or trainer.state.fn != TrainerFn.FITTING:
        return
    finders = [
        type(callback).__name__
        for callback in trainer.callbacks
        if isinstance(callback, (BatchSizeFinder, LearningRateFinder))
    ]
    if finders and trainer._checkpoint_connector._loaded_checkpoint:  # noqa: SLF001 empty once it is restored
        raise StateError(
            f"{finders[0]} cannot be among the callbacks of a fit that resumes "
            f"{trainer.ckpt_path}: it would put the fit back to its beginning, with the resumed "
            "weights; run it before, in a fit without ckpt_path, set what it has found, and leave "
            "it out of the fit that resumes"
        )


def warn_of_losses(restored: RestoredCounters, limit: int, accumulate: int) -> None:
    """Say what Lightning will leave out where it goes on from these counters."""
    batches, runs = restored.batches, "both runs"
    if restored.saved == "cut" and batches < limit:
        loss = (
            f"the fit that is resumed was ended after batch {batches} of an epoch, before its end, "
            "by max_steps or a callback, and Lightning counts that epoch as done: the rest of it "
            "will not be trained, and with max_steps as many batches of the next epoch may be left "
            "out, too"
        )
    elif restored.saved == "skipping":
        runs = "this run"
        loss = (
            "the checkpoint is of an epoch's end, and with max_steps Lightning counts the next "
            "epoch as done, too: none of it will be trained"
        )
    elif not restored.is_over and batches % accumulate:
        loss = (
            f"the checkpoint was saved after batch {batches} of an epoch, within a window of "
            f"accumulate_grad_batches={accumulate}: it does not hold the gradients of the last "
            f"{batches % accumulate} of them, and Lightning will not train these again"
        )
    else:
        return
    rank_zero_warn(
        f"{loss}. To go on with the next sample, have ExactResume() among the trainer's callbacks "
        f"of {runs}, or resume from a checkpoint of ModelCheckpoint(every_n_train_steps=...)"
    )


def count_one_open_epoch(fit_loop: Any) -> None:
    """Count the epoch that has begun once, so that it is known when it has ended.

    Lightning counts one twice that an exception ended and the next fit of the trainer begins again,
    and does not count one that follows a checkpoint of an epoch's last batch.
    """
    is_restarted = fit_loop.restarted_mid_epoch or fit_loop.restarted_on_epoch_end
    for counts in (fit_loop.epoch_progress.total, fit_loop.epoch_progress.current):
        if is_restarted or counts.started > counts.processed:
            counts.ready = counts.started = counts.processed + 1
            counts.completed = counts.processed


def accumulation_of(trainer: Any, epoch: int) -> int:
    """How many batches of an epoch the trainer accumulates for a step of its optimiser."""
    for callback in trainer.callbacks:
        if isinstance(callback, GradientAccumulationScheduler):
            return int(callback.get_accumulate_grad_batches(epoch))
    return int(trainer.accumulate_grad_batches)


_LAST_BATCH_S: Final = 1.5
"""Seconds that a fit which was told to end waits for the batch that it was waiting for."""


class FitPosition(NamedTuple):
    """The position of a fit between two batches, in Lightning's terms.

    Attributes:
        epoch: The open epoch, or the next one; also the number of epochs that have ended.
        batches: Batches of this epoch that are trained.
        is_over: Whether all its batches are trained, so that at most validation and the epoch's
            end are left.
        total: Batches trained since the first epoch, whatever their size was.
        validation_due: Whether a validation comes next, or may come at the end of this epoch.
    """

    epoch: int
    batches: int
    is_over: bool
    total: int
    validation_due: bool = False

    @property
    def is_between_epochs(self) -> bool:
        """Whether the epoch has not begun yet."""
        return self.batches == 0 and not (self.is_over or self.validation_due)

    def is_stepped(self, accumulate: int) -> bool:
        """Whether the last batch closes an accumulation window for Lightning."""
        return self.is_over or self.batches % accumulate == 0


class EpochAnchor(NamedTuple):
    """The point from which the rest of an epoch is counted after its batch size changed.

    Attributes:
        cursor: The first sample that was not trained before the change.
        batches: Lightning's number of batches at this cursor, in batches of the new size.
    """

    cursor: Cursor
    batches: int


@contextmanager
def unless_told_to_end(trainer: Trainer) -> Generator[None]:
    """A context whose waits end some time after SIGTERM, as Lightning would after the batch.

    A fit ends when its batch is trained. One that does not come would keep the process for minutes,
    so it is given up. With several ranks Lightning's handler waits for all of them. A rank that
    waits for this one in the collective of a step never answers, so the handler is called when the
    wait is over.
    """
    deferred = DeferredSignal(signal.SIGTERM) if trainer.world_size > 1 else None
    noticed_at = 0.0

    def raise_if_told() -> None:
        nonlocal noticed_at
        if trainer.received_sigterm or (deferred and deferred.is_noted):
            noticed_at = noticed_at or perf_counter()
            if perf_counter() - noticed_at >= _LAST_BATCH_S:
                raise SIGTERMException

    with deferred or nullcontext(), Cancellable(raise_if_told):
        yield


class TrainProgress:
    """The position of `trainer.fit` in its train loader."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer  # Lightning types its counters too narrowly
        self.waiting = partial(unless_told_to_end, trainer)
        self.anchor: EpochAnchor | None = None
        self._is_known = False
        self.has_begun = False

    def begin(self, loader: ShardLoader) -> tuple[Cursor, int | None] | None:
        """The first sample that is not trained yet, and the steps that the trainer wants.

        It is None if the trainer has stopped.

        Raises:
            StateError: The checkpoint is from within an epoch, and counts batches of unknown or
                other size.
            ConfigError: The trainer's epochs do not end with this loader's.
        """
        if self._trainer.state.stopped:
            return None
        limit = _own_limit(self._trainer, loader)
        if not (self._is_known or self.anchor):
            # ExactResume has not found this loader alone, and the data module left the check to it
            self.require_known(loader, {})
        epoch, batches = self._position(limit)
        count_one_open_epoch(self._trainer.fit_loop)
        if batches:  # else Lightning's scheduler has set it at the start of this epoch
            self._trainer.accumulate_grad_batches = accumulation_of(self._trainer, epoch)
        self.has_begun = True
        return self._cursor(loader, epoch, batches), limit

    def accepted(self, loader: ShardLoader, saved: State) -> State:
        """The state of a checkpoint that this run goes on from, `{}` if there is none.

        It is that of the data of this run where a callback lets these be others.

        Raises:
            StateError: It is of other data or of other settings; or as of `require_known`, unless a
                callback resumes with another batch size, as `ExactResume` does.
        """
        callbacks = self._trainer.callbacks
        if saved and any(getattr(each, "allow_new_data", False) for each in callbacks):
            saved = with_new_data(saved, loader.shape | loader.identity)
        if saved:
            loader.load_state_dict(saved)
        if not any(getattr(each, "translates_batches", False) for each in callbacks):
            if saved.get("epoch") or saved.get("samples"):  # else nothing is trained yet
                require_same(loader.shape, saved, TRANSLATE)
            self.require_known(loader, saved)
        return saved

    def require_known(self, loader: ShardLoader, saved: State) -> None:
        """Refuse a checkpoint whose count of batches means nothing in this run.

        It warns where Lightning will leave out batches.

        Args:
            loader: The train loader of this run.
            saved: The state of a loader in the checkpoint, `{}` if there is none.

        Raises:
            StateError: The checkpoint is from within an epoch, and its batches are of another or
                unknown size; or its epoch ends earlier now, so that Lightning would train it again.
        """
        restored = restored_counters(self._trainer)
        limit = limit_of(self._trainer, len(loader))
        if self._trainer.ckpt_path is not None:  # no trial of the Tuner
            warn_of_losses(restored, limit, accumulation_of(self._trainer, restored.epochs))
        if restored.is_restarting:
            if restored.batches and (not restored.is_over or restored.batches < limit):
                _require_shape(loader, saved or restored.loader, restored.batches)
            if restored.saved == "within" and restored.batches >= limit:
                raise StateError(
                    f"the checkpoint was saved after batch {restored.batches} of an epoch, whose "
                    f"end is now at {limit}, and Lightning would train that epoch again; set "
                    f"limit_train_batches to {restored.batches + 1} or more, or train with "
                    "ExactResume() among the trainer's callbacks, whose checkpoints resume there"
                )
        self._is_known = True

    def trained(self, loader: ShardLoader) -> Cursor:
        """The cursor of samples whose optimiser step was taken, by Lightning's own counters."""
        position = self.position(loader)
        if position.is_over:
            return Cursor(position.epoch + 1)
        return self._cursor(loader, position.epoch, position.batches)

    def position(self, loader: ShardLoader) -> FitPosition:
        """The position of the fit; an open accumulation window counts as not begun.

        Lightning's `processed` is right in checkpoints from the end of a batch, from the end of a
        validation and from an exception; `ready` and `completed` are not.
        """
        fit_loop = self._trainer.fit_loop
        progress, batch = fit_loop.epoch_progress.current, fit_loop.epoch_loop.batch_progress
        end = min(len(loader), fit_loop.max_batches)
        epoch, batches = progress.processed, batch.current.processed
        if progress.started == progress.processed:  # between epochs; batches are of the last one
            if not (epoch and batches < end and self._was_cut_off()):
                return FitPosition(epoch, 0, is_over=False, total=batch.total.processed)
            epoch -= 1  # that epoch was not at its end; a resumed fit goes on with it
        if batches >= end:
            return FitPosition(epoch, batches, is_over=True, total=batch.total.processed)
        is_here = self.anchor is not None and self.anchor.cursor.epoch == epoch
        least = self.anchor.batches if self.anchor and is_here else 0
        stepped = max(least, batches - batches % self._trainer.accumulate_grad_batches)
        total = batch.total.processed - (batches - stepped)
        return FitPosition(epoch, stepped, is_over=False, total=total)

    def is_validation_due(self, position: FitPosition) -> bool:
        """Whether a validation follows the last trained batch, whether it has run or not."""
        fit_loop = self._trainer.fit_loop
        epochs = fit_loop.epoch_progress.current
        batches = fit_loop.epoch_loop.batch_progress.current
        is_open = epochs.started > epochs.processed and fit_loop._data_fetcher is not None  # noqa: SLF001 there is none outside of a fit
        if not is_open or not batches.ready == batches.processed == position.batches:
            return False
        is_found = fit_loop.epoch_loop.val_loop._combined_loader is not None  # noqa: SLF001 as above
        return validates_now(self._trainer) and (not is_found or any(self._trainer.num_val_batches))

    def _was_cut_off(self) -> bool:
        """Whether the fit was ended before the last batch of its epoch.

        Lightning counts a batch as the last one, too, where a hook has skipped the rest of the
        epoch.
        """
        trainer = self._trainer
        is_ended = trainer.should_stop or trainer.global_step >= trainer.max_steps != -1
        return is_ended and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch

    def _cursor(self, loader: ShardLoader, epoch: int, batches: int) -> Cursor:
        anchor = self.anchor
        if anchor is None or anchor.cursor.epoch != epoch:
            return Cursor(epoch, loader.plan.trained(batches))
        rest = loader.epochs.plan(loader.place.world_size, anchor.cursor.samples)
        return Cursor(epoch, rest.trained(batches - anchor.batches))

    def _position(self, limit: int | None) -> tuple[int, int]:
        """The epoch, and how many of its batches are trained."""
        fit_loop = self._trainer.fit_loop
        progress = fit_loop.epoch_progress.current
        batches = fit_loop.epoch_loop.batch_progress.current.processed
        if not fit_loop.restarting or progress.ready == progress.processed:
            return progress.processed, 0
        if limit is not None and batches >= limit:
            return progress.processed + 1, 0
        return progress.processed, batches


def _require_shape(loader: ShardLoader, saved: State, batches: int) -> None:
    if saved:
        require_same(loader.shape, saved, TRANSLATE)
        return
    raise StateError(
        f"the checkpoint was saved after batch {batches} of an epoch, before its end, and nothing "
        "in it says how many samples these were (a data module's state is kept under the name of "
        "its class); resume from a checkpoint of an epoch's end, or "
        f"{WEIGHTS_ALONE}"
    )


def _own_limit(trainer: Any, loader: ShardLoader) -> int | None:
    """Steps of an epoch that the trainer wants; StochasticWeightAveraging's last pass adds one.

    Raises:
        ConfigError: A combined loader begins ours again within an epoch, or goes on without it.
    """
    batches, steps = trainer.fit_loop.max_batches - trainer.fit_loop._skip_backward, len(loader)  # noqa: SLF001 it has set this
    if batches > steps and any(each is loader for each in train_loaders(trainer)):
        length = "no known end" if batches == float("inf") else f"{batches} batches"
        raise ConfigError(
            f"a loader has {steps} steps, and the trainer's epoch, in which it is combined with "
            f"others, has {length}: its samples would be repeated, and no checkpoint within an "
            "epoch could be resumed; let epochs end with the shortest loader: have "
            'train_dataloader return CombinedLoader({"shards": ..., ...}, "min_size") of '
            "lightning.pytorch.utilities, and not the dict or list alone"
        )
    return _as_limit(batches)


class EvaluationProgress:
    """The position of a validation, test or prediction, which always starts at the beginning."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer  # Lightning types its counters too narrowly
        self.waiting = partial(unless_told_to_end, trainer)

    def begin(self, loader: ShardLoader) -> tuple[Cursor, int | None] | None:
        """The beginning of the epoch, and the steps that the trainer wants of this loader.

        It is None if the trainer has stopped.
        """
        if self._trainer.state.stopped:
            return None
        loaders = evaluation_loaders(self._trainer)
        steps = evaluation_loop(self._trainer).max_batches
        # Lightning keeps the steps of loaders that it has forgotten
        limits = [limit for listed, limit in zip(loaders, steps, strict=False) if listed is loader]
        return Cursor(), _as_limit(limits[0]) if limits else None

    def trained(self, loader: ShardLoader) -> Cursor:
        """The beginning of the epoch, because evaluation keeps no progress."""
        return Cursor()


def evaluation_loop(trainer: Any) -> Any:
    """The loop of a validation, test or prediction that is running or has just ended."""
    if trainer.state.fn == TrainerFn.PREDICTING:
        return trainer.predict_loop
    # a loader may be iterated by hand before any run
    return trainer._evaluation_loop if trainer.state.fn else trainer.validate_loop  # noqa: SLF001 as below


def _as_limit(batches: float) -> int | None:
    return None if batches == float("inf") else int(batches)


def limit_of(trainer: Any, steps: int) -> int:
    """How many of an epoch's `steps` the trainer will run."""
    limit = trainer.limit_train_batches
    return min(steps, limit) if isinstance(limit, int) else int(steps * limit)


def validates_now(trainer: Any) -> bool:
    """Whether Lightning validates after the last trained batch, by its own rule."""
    fit_loop = trainer.fit_loop
    return bool(fit_loop.epoch_loop._should_check_val_fx(fit_loop._data_fetcher))  # noqa: SLF001 its own rule, with all its switches


def batches_seen(trainer: Any) -> tuple[int, int]:
    """The open epoch, and how many of its batches went through the model."""
    epochs, batches = trainer.fit_loop.epoch_progress, trainer.fit_loop.epoch_loop.batch_progress
    return epochs.current.processed, batches.current.processed


def place_of(trainer: Any) -> Place:
    """The data-parallel rank of this process and the world size, from the trainer."""
    replicas = trainer.distributed_sampler_kwargs or {"num_replicas": 1, "rank": 0}
    return Place(replicas["rank"], replicas["num_replicas"], num_nodes=trainer.num_nodes)


def train_loaders(trainer: Any) -> list[Any]:
    """The train loaders of a running fit, ours and foreign, in the order of their container."""
    combined = trainer.fit_loop._combined_loader  # noqa: SLF001 Lightning names no other way
    return [] if combined is None else list(combined.flattened)


def evaluation_loaders(trainer: Any) -> list[Any]:
    """The loaders of a validation, test or prediction that is running or has just ended."""
    combined = evaluation_loop(trainer)._combined_loader  # noqa: SLF001 as above
    return [] if combined is None else list(combined.flattened)


def restart_train_loaders(trainer: Any) -> None:
    """Make the train iterators again: those of the first epoch are made before any hook runs."""
    trainer.fit_loop._combined_loader.reset()  # noqa: SLF001 ends workers that know the old epoch
    iter(trainer.fit_loop._data_fetcher)  # noqa: SLF001 what fit_loop.setup_data did


def should_log(trainer: Any) -> bool:
    """Whether Lightning logs at this step."""
    return bool(trainer._logger_connector.should_update_logs)  # noqa: SLF001 as Lightning's monitors


def logger_step(trainer: Any) -> int:
    """The step that Lightning gives its loggers as their x axis."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)  # noqa: SLF001 as above
