"""Checks of the state in a checkpoint, which is a file that may be damaged."""

import sys
from collections.abc import Mapping
from math import gcd
from reprlib import repr as _shown
from typing import Any, cast

from lightning_shards.errors import StateError, count_of
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor
from lightning_shards.readers.source import SourceDescription
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.settings import JOIN_PREFIX, component_of_join
from lightning_shards.shards.urls import split_url

State = dict[str, int | str]
"""Plain values, equal on all ranks."""

TRANSLATE = (
    "set it back to resume, or train with ExactResume() among the trainer's callbacks, whose "
    "checkpoints resume with another batch size and another number of ranks"
)

WEIGHTS_ALONE = (
    "start anew with its weights alone: Model.load_from_checkpoint(path), and fit without ckpt_path"
)

_SETTINGS_OF = {
    "kept": "other samples are left by `keep` and `exclude`: set these, and what is in the lists,",
    "epoch_samples": "epochs have another length: set dataset_size",
    "alike_sizes": "batch_alike sorts samples by other sizes: put the old shards",
}
"""What differs where these values do, and what to set back."""

_OF_DATA = ("shards", "epoch_samples", "kept", "component_", JOIN_PREFIX)
"""How the names of values begin that follow from what the shards and the joined tables hold."""

_ANOTHER = "resume from another checkpoint, or start anew without this one's state"


def require_state(state: object, whose: str) -> State:
    """The state itself if it is a dict; its values are not checked.

    Raises:
        StateError: It is not a dict.
    """
    if not isinstance(state, Mapping):
        raise StateError(
            f"the checkpoint's state of {whose} must be a dict of plain values, got "
            f"{_shown(state)}; it is damaged: {_ANOTHER}"
        )
    return dict(cast("Mapping[str, Any]", state))


def read_count(
    state: Mapping[str, object], name: str, most: int = sys.maxsize, *, least: int = 0
) -> int:
    """A count in a state.

    Raises:
        StateError: It is missing, not a whole number, below `least` or above `most`.
    """
    value = state.get(name)
    if type(value) is not int or not least <= value <= most:
        raise StateError(
            f"{name} in the checkpoint must be a whole number from {least} to {most}, got "
            f"{_shown(value)}; it is damaged or of another run: {_ANOTHER}"
        )
    return value


def require_same(
    expected: State,
    state: Mapping[str, object],
    ways_out: str = "set it back to resume, or start anew without the loader's state",
    index: ShardIndex | None = None,
) -> None:
    """Check that a saved state agrees with this run.

    Args:
        expected: The values of this run.
        state: The saved state.
        ways_out: Two remedies.
        index: The shards of this run, which are described if the saved ones are others.

    Raises:
        StateError: A value differs; the message names the field, both values and two remedies.
    """
    ours = ("kept", "classes", "balance", "batch_alike", "shuffle_strands")
    set_then = [name for name in ours if "shards" in expected and name in state]
    for name, value in (dict[str, object].fromkeys(set_then) | expected).items():
        saved = state.get(name)
        if name.startswith(JOIN_PREFIX) and saved != value:
            _require_same_table(name.removeprefix(JOIN_PREFIX), saved, value)
        elif type(saved) is not type(value) or saved != value:
            if name == "shards" and index is not None:
                raise StateError(_other_shards(state.get("epoch_samples"), index))
            now = f"no {name}" if value is None else repr(value)
            if name in _SETTINGS_OF:
                ways_out = f"{_SETTINGS_OF[name]} back to resume, or {WEIGHTS_ALONE}"
            raise StateError(
                f"the checkpoint was made with {name}={_shown(saved)}, this run has {now}; "
                f"{ways_out}"
            )


def require_resumable(
    expected: State, state: Mapping[str, object], description: SourceDescription
) -> None:
    """Check that a run of these values may go on where a state was saved.

    Of a mixture, stages that begin behind the trained samples may be others, and so may all that
    components without weight before are made of.

    Args:
        expected: The values of this run, with those of its source.
        state: The saved state.
        description: What the source says of itself.

    Raises:
        StateError: A value differs that the trained samples depend on, or one is damaged.
    """
    if description.mixture is None:
        require_same(expected, state, index=description.index)
        return
    epochs = read_count(state, "epoch") * description.mixture.slots.epoch_samples
    trained = epochs + read_count(state, "samples")
    trained_names = description.mixture.slots.schedule.names_before(trained)
    of_mixture = description.mixture.values()
    others = {
        name: value
        for name, value in expected.items()
        if name not in of_mixture and component_of_join(name) in {None, *trained_names}
    }
    require_same(others, state)
    description.mixture.require_resumable(state, trained)


def with_new_data(state: State, values: State) -> State:
    """The state as one of the data of this run, if it was saved at an end of an epoch.

    In the middle of an epoch it stays as it is, and so do its counters and its other values.

    Args:
        state: The saved state.
        values: Those of this run.
    """
    if state.get("samples") != 0:
        return state
    others = {name: value for name, value in state.items() if not name.startswith(_OF_DATA)}
    return others | {name: value for name, value in values.items() if name.startswith(_OF_DATA)}


def require_not_before(epoch: int, restored: Cursor | None) -> None:
    """Check that the epoch to begin is not one that was trained before the state was saved.

    Args:
        epoch: The epoch to begin.
        restored: The cursor at which the loader goes on by its state; None: it has none.

    Raises:
        StateError: It is such an epoch.
    """
    if restored is None or epoch >= restored.epoch:
        return
    raise StateError(
        f"by its state the loader goes on in epoch {restored.epoch}, and it was told to begin "
        f"epoch {epoch}, whose samples were trained before the state was saved: count epochs from "
        "loader.epoch, as load_state_dict has set it: for epoch in range(loader.epoch, epochs); "
        "give the shards to a trainer as datamodule=, or resume it from a checkpoint of an epoch's "
        "end; to begin an earlier epoch again, make the loader anew"
    )


def require_not_within(epoch: int, restored: Cursor | None) -> None:
    """Check that a trainer which was given a loader by hand does not go on within an epoch.

    Raises:
        StateError: It does, by its own count of batches, whatever their size was.
    """
    if restored is not None and restored.samples and epoch == restored.epoch:
        raise StateError(
            f"the checkpoint was saved after {restored.samples} samples of epoch {epoch}, and a "
            "trainer that is given a loader by hand goes on at the ends of epochs alone: give the "
            "shards to it as datamodule= to resume within an epoch, or resume from a checkpoint of "
            "an epoch's end"
        )


def read_cursor(
    state: Mapping[str, object],
    description: SourceDescription,
    epochs: EpochSchedule,
    world_size: int,
) -> Cursor:
    """The cursor of a state, at which the batches of this run can go on.

    Raises:
        StateError: The cursor is damaged; or one of the batches in the rest of its epoch would be
            of two units of a mixture, would not tell its repeats, or would be of other samples
            since these are sorted by other sizes.
    """
    samples = read_count(state, "samples", epochs.samples)
    cursor = Cursor(read_count(state, "epoch"), samples)
    require_same(description.state_at(cursor), state)
    rest, size = epochs.plan(world_size, samples), epochs.batch_size
    unit = 1 if description.mixture is None else description.mixture.slots.schedule.unit
    if samples % size and unit % size == 0 and epochs.steps(world_size, samples):
        raise StateError(
            f"the checkpoint was made after {samples} samples of its epoch, which are no multiple "
            f"of batch_size={size}, so batches would be of two units of {unit} samples; resume "
            f"with batches whose size divides both, such as {gcd(samples, unit)}"
        )
    reaches_repeats = rest.padded and epochs.steps(world_size, samples) == rest.steps
    if reaches_repeats and "__weight__" not in description.reserved:
        # 24 samples are three steps of 8, and the 12 that are left after 12 one step and a half
        raise StateError(
            f"the checkpoint was made after {samples} samples of its epoch, and in steps of "
            f"{rest.global_batch} samples remainder={rest.remainder!r} fills the last step of the "
            f"rest with {count_of(rest.padded, 'repeat')}, with `__weight__` 0, which batches "
            "without `__weight__` do not tell; resume with the batch size and ranks that saved "
            "it, or with batch_format='dict' and `__weight__` named in batch_keys if you set them"
        )
    return cursor


def _require_same_table(join: str, saved: object, digest: object) -> None:
    """Refuse a table that has changed; a join that the checkpoint does not know is a new field."""
    if saved is not None:
        raise StateError(
            f"the table of join {join!r} has changed since the checkpoint was made: its contents "
            f"were {_shown(saved)}, now they are {digest!r}; put the old table back to resume, or "
            f"give the new one another name than {join!r}"
        )


def _other_shards(epoch_samples: object, index: ShardIndex) -> str:
    samples = "an unknown number" if index.samples is None else index.samples
    first, last = (split_url(url)[1] for url in (index.urls[0], index.urls[-1]))
    return (
        f"the checkpoint is of other shards: its epoch has {_shown(epoch_samples)} samples, and "
        f"the shards of this run (number of shards: {index.num_shards}, from {first!r} to "
        f"{last!r}) hold {samples}; their file names, order and counts must be those of the run "
        "that saved it, whose config.yaml names its urls: set these back to resume, or "
        f"{WEIGHTS_ALONE}; from "
        "a checkpoint of an epoch's end ExactResume(allow_new_data=True) goes on with other shards"
    )
