"""Lightning's progress counters where a fit goes on: what they say, lose, and have to be told."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
)
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lightning_shards.errors import StateError
from lightning_shards.saved_state import State, reading_counters, require_state


class RestoredCounters(NamedTuple):
    """The position in a checkpoint by Lightning's own counters.

    Attributes:
        epochs: Epochs that count as done.
        batches: Batches of its epoch that are trained.
        total: Batches of all epochs.
        is_over: Whether Lightning counts that epoch as done.
        is_within: Whether it was saved at the end of a batch that was not the epoch's last.
        is_cut_off: Whether the epoch counts as done although batches were left, as where
            `max_steps` or a callback ended the fit.
        is_skipping: Whether Lightning will go on, and will count the next epoch as done, too, as
            it does with `max_steps` after a whole epoch.
        is_restarting: Whether Lightning goes on with this count of batches.
        loader: The state of its loader, if Lightning saved it.
    """

    epochs: int
    batches: int
    total: int
    is_over: bool
    is_within: bool
    is_cut_off: bool
    is_skipping: bool
    is_restarting: bool
    loader: State


def restored_counters(trainer: Any) -> RestoredCounters:
    """The counters of a checkpoint that is resumed; zeros if the fit starts from the beginning.

    If Lightning estimates the steps of a fit, it requests the loader before it restores its
    counters; they are then read from the checkpoint itself.
    """
    fit_loop, checkpoint = trainer.fit_loop, trainer._checkpoint_connector._loaded_checkpoint  # noqa: SLF001 empty once it is restored
    with reading_counters():
        if checkpoint:
            saved = checkpoint["loops"]["fit_loop"]
            epochs, batch = saved["epoch_progress"], saved["epoch_loop.batch_progress"]
            states = saved["state_dict"].get("combined_loader")
        else:
            epochs = fit_loop.epoch_progress.state_dict()
            batch = fit_loop.epoch_loop.batch_progress.state_dict()
            states = fit_loop._combined_loader_states_to_load  # noqa: SLF001 for the loader that is asked for
        is_open = epochs["current"]["ready"] != epochs["current"]["processed"]
        is_over = batch["is_last_batch"] or not is_open
        is_within = not is_over and batch["total"]["completed"] < batch["total"]["processed"]
        done = epochs["current"]["processed"]
        batches, total = batch["current"]["processed"], batch["total"]["processed"]
        steps = checkpoint["global_step"] if checkpoint else trainer.global_step
        is_finished = done >= trainer.max_epochs != -1 or steps >= trainer.max_steps != -1
        is_closed = not is_open and done > 0
        is_cut_off = is_closed and not batch["is_last_batch"]
    by_steps = fit_loop._iteration_based_training()  # noqa: SLF001 as its `restarting`
    is_restarting = is_open or by_steps if checkpoint else fit_loop.restarting
    is_whole = is_closed and not is_cut_off and batches > 0  # none where ExactResume wrote them
    is_whole = is_whole and not fit_loop.restarted_mid_epoch  # it goes on after a last batch
    return RestoredCounters(
        epochs=done,
        batches=batches,
        total=total,
        is_over=is_over,
        is_within=is_within,
        is_cut_off=is_cut_off,
        is_skipping=is_whole and is_restarting and not is_finished,
        is_restarting=is_restarting,
        loader=_first(states),
    )


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
    loss, runs, batches = "", "both runs", restored.batches
    if restored.is_cut_off and batches < limit:
        loss = (
            f"the fit that is resumed was ended after batch {batches} of an epoch, before its end, "
            "by max_steps or a callback, and Lightning counts that epoch as done: the rest of it "
            "will not be trained, and with max_steps as many batches of the next epoch may be left "
            "out, too"
        )
    elif restored.is_skipping:
        loss = (
            "the checkpoint is of an epoch's end, and with max_steps Lightning counts the next "
            "epoch as done, too: none of it will be trained"
        )
        runs = "this run"
    elif not restored.is_over and batches % accumulate:
        loss = (
            f"the checkpoint was saved after batch {batches} of an epoch, within a window of "
            f"accumulate_grad_batches={accumulate}: it does not hold the gradients of the last "
            f"{batches % accumulate} of them, and Lightning will not train these again"
        )
    if loss:
        rank_zero_warn(
            f"{loss}. To go on with the next sample, have ExactResume() among the trainer's "
            f"callbacks of {runs}, or resume from a checkpoint of "
            "ModelCheckpoint(every_n_train_steps=...)"
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


def left_by_earlier_fit(trainer: Any) -> str:
    """What a fit without a checkpoint repeats or leaves out of the epoch that the last one left.

    Asked before the fit begins; empty if it does neither, or if the trainer is done.
    """
    epochs = trainer.fit_loop.epoch_progress.current
    batch = trainer.fit_loop.epoch_loop.batch_progress
    done, is_open = batch.current.processed, epochs.started > epochs.processed
    if not done:
        return ""
    if (
        epochs.processed >= trainer.max_epochs != -1
        or trainer.global_step >= trainer.max_steps != -1
    ):
        return ""
    if is_open:
        lost = "this fit begins it anew and trains on its samples again"
    elif epochs.processed and not batch.is_last_batch:
        lost = "Lightning counts it as done, and the rest of it will not be trained"
    else:
        return ""
    return (
        f"the earlier fit of this trainer was ended after batch {done} of epoch "
        f"{epochs.processed - (not is_open)}, before its end: {lost}. To go on with the next "
        "sample, have ExactResume() among the trainer's callbacks of both fits, call "
        "trainer.save_checkpoint(path) after the first and give that path as ckpt_path to the "
        "second"
    )


def accumulation_of(trainer: Any, epoch: int) -> int:
    """How many batches of an epoch the trainer accumulates for a step of its optimiser."""
    for callback in trainer.callbacks:
        if isinstance(callback, GradientAccumulationScheduler):
            return int(callback.get_accumulate_grad_batches(epoch))
    return int(trainer.accumulate_grad_batches)


def translates_batches(callbacks: Iterable[Any]) -> bool:
    """Whether a callback can resume with another batch size, as `ExactResume` does."""
    return any(getattr(callback, "translates_batches", False) for callback in callbacks)


def _first(states: list[State] | None) -> State:
    return require_state(states[0], "the train loader") if states else {}
