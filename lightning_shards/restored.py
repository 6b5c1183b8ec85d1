"""Lightning's progress counters in a checkpoint that is resumed."""

from typing import Any, NamedTuple

from lightning_shards.saved_state import State, reading_counters, require_state


class RestoredCounters(NamedTuple):
    """The position in a checkpoint by Lightning's own counters.

    Attributes:
        batches: Batches of its epoch that are trained.
        is_over: Whether Lightning counts that epoch as done.
        is_within: Whether it was saved at the end of a batch that was not the epoch's last.
        is_cut_off: Whether the epoch counts as done although batches were left, as where
            `max_steps` ended the fit.
        is_restarting: Whether Lightning goes on with this count of batches.
        loader: The state of its loader, if Lightning saved it.
    """

    batches: int
    is_over: bool
    is_within: bool
    is_cut_off: bool
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
        batches = batch["current"]["processed"]
        is_cut_off = not is_open and not batch["is_last_batch"] and batches > 0
    if checkpoint:
        is_restarting = is_open or fit_loop._iteration_based_training()  # noqa: SLF001 as its `restarting`
    else:
        is_restarting = fit_loop.restarting
    return RestoredCounters(batches, is_over, is_within, is_cut_off, is_restarting, _first(states))


def _first(states: list[State] | None) -> State:
    return require_state(states[0], "the train loader") if states else {}
