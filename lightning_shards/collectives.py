"""Collectives by which all ranks agree on an epoch before it starts, or raise the same error.

If a rank failed alone, the others would wait in a collective for its timeout, half an hour.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch.distributed

from lightning_shards import errors
from lightning_shards.errors import PlanError, RankError, ShardError


def agree(facts: Mapping[str, int | str], error: Exception | None) -> None:
    """Compare the facts of all ranks. Every rank must call this, even one that failed before.

    Without an initialised process group there is one rank, which only raises its own error.

    Args:
        facts: Plain values that must be equal on all ranks, such as the steps of an epoch.
        error: The error of this rank, if it failed.

    Raises:
        ShardError: A rank failed; all ranks raise the error of the first one.
        RankError: A rank failed with an error that is not a `ShardError`.
        PlanError: A fact differs between ranks.
    """
    reports = gather((dict(facts), _as_text(error)))
    if error is not None:
        raise error
    for rank, (_, failure) in enumerate(reports):
        if failure is not None:
            name, message = failure
            raise getattr(errors, name)(f"rank {rank} failed: {message}")
    _compare([of_rank for of_rank, _ in reports])


def gather(value: Any) -> list[Any]:
    """The values of all processes, in order of global rank. Every process must call this.

    Args:
        value: Plain picklable values, a few hundred bytes.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    cast("Any", torch.distributed).all_gather_object(values, value)
    return values


def _as_text(error: Exception | None) -> tuple[str, str] | None:
    """The error in a form that all ranks can raise: the name of a class in `errors`, and text.

    An error that holds a lock cannot be pickled, and one whose class takes two arguments cannot be
    made again from its message.
    """
    if error is None:
        return None
    if not isinstance(error, ShardError):
        return RankError.__name__, f"{type(error).__name__}: {error}"
    known = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return known.__name__, str(error)


def _compare(facts: list[dict[str, int | str]]) -> None:
    for name in dict.fromkeys(name for fact in facts for name in fact):
        values = [fact.get(name) for fact in facts]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            raise PlanError(
                f"the ranks disagree on {name}: rank 0 has {values[0]!r}, rank {other} has "
                f"{values[other]!r}; give all ranks the same shards and the same settings"
            )
