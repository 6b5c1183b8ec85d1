"""Checks of the state in a checkpoint, which is a file that may be damaged."""

import reprlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from lightning_shards.errors import StateError
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.urls import split_url

State = dict[str, int | str]
"""Plain values, equal on all ranks."""

MOST = 2**63 - 1
"""No count of a real run is larger."""

TRANSLATE = (
    "set it back to resume, or train with ExactResume() among the trainer's callbacks, whose "
    "checkpoints resume with another batch size and another number of ranks"
)

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


def read_count(state: Mapping[str, object], name: str, most: int = MOST, *, least: int = 0) -> int:
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


def read_choice(state: Mapping[str, object], name: str, choices: tuple[str, ...]) -> str:
    """A word in a state.

    Raises:
        StateError: It is missing, or is not one of the choices.
    """
    value = state.get(name)
    if not isinstance(value, str) or value not in choices:
        raise StateError(
            f"{name} in the checkpoint must be one of {list(choices)}, got {_shown(value)}; it is "
            f"damaged: {_ANOTHER}"
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
    for name, value in expected.items():
        saved = state.get(name)
        if type(saved) is not type(value) or saved != value:
            if name == "shards" and index is not None:
                raise StateError(_other_shards(state.get("epoch_samples"), index))
            raise StateError(
                f"the checkpoint was made with {name}={_shown(saved)}, this run has {value!r}; "
                f"{ways_out}"
            )
    if "shards" in expected and "classes" in state and "classes" not in expected:
        raise StateError(
            f"the checkpoint was made with classes={_shown(state['classes'])}, this run decodes no "
            f"label by names of classes; {ways_out}"
        )


def _other_shards(epoch_samples: object, index: ShardIndex) -> str:
    samples = "an unknown number" if index.samples is None else index.samples
    first, last = (split_url(url)[1] for url in (index.urls[0], index.urls[-1]))
    return (
        f"the checkpoint is of other shards: its epoch has {_shown(epoch_samples)} samples, and "
        f"the shards of this run (number of shards: {index.num_shards}, from {first!r} to "
        f"{last!r}) hold {samples}; their file names, order and counts must be those of the run "
        "that saved it, whose config.yaml names its urls: set these back to resume, or start anew "
        "with its weights alone: Model.load_from_checkpoint(path), and fit without ckpt_path"
    )


@contextmanager
def reading_counters() -> Generator[None, None, None]:
    """A context for reading Lightning's own part of a checkpoint.

    Raises:
        StateError: A counter is missing.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"the counters of Lightning's own in the checkpoint cannot be read "
            f"({type(error).__name__}: {error}); it is damaged or was edited: {_ANOTHER}"
        ) from error


def _shown(value: object) -> str:
    """A value as text, cut short; Python refuses to print a huge number."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"a number of {value.bit_length()} bits"
    return reprlib.repr(value)
