"""All ranks agree on an epoch before it starts, or all of them raise the same error.

A rank that fails alone leaves the others in a collective until its timeout, half an hour later.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch.distributed

from lightning_shards.errors import PlanError, RankError, ShardError


class _Report(NamedTuple):
    """What one rank tells the others: its facts, or how it failed."""

    facts: dict[str, int | str]
    error: ShardError | None


def agree(facts: Mapping[str, int | str], error: Exception | None) -> None:
    """Compare what the ranks know; every rank must call this, also one that failed before.

    Without an initialised process group there is one rank, which only raises its own error.

    Args:
        facts: plain values that must be equal on all ranks, such as the steps of an epoch.
        error: what went wrong on this rank.

    Raises:
        ShardError: the first rank's error, on all ranks.
        RankError: likewise, for an error that is none of ours.
        PlanError: a fact differs between ranks.
    """
    reports: list[_Report] = gather(_Report(dict(facts), _portable(error)))
    if error is not None:
        raise error
    for rank, report in enumerate(reports):
        if report.error is not None:
            raise type(report.error)(f"rank {rank} failed: {report.error}")
    _compare([report.facts for report in reports])


def gather(value: Any) -> list[Any]:
    """The values of all processes, by global rank; every one of them must call this.

    Args:
        value: plain picklable values, a few hundred bytes.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    cast("Any", torch.distributed).all_gather_object(values, value)
    return values


def _portable(error: Exception | None) -> ShardError | None:
    """The error as all ranks can raise it: ours as it is, another one by its text."""
    if error is None or isinstance(error, ShardError):
        return error
    return RankError(f"{type(error).__name__}: {error}")


def _compare(facts: list[dict[str, int | str]]) -> None:
    for name in facts[0]:
        values = [each.get(name) for each in facts]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            raise PlanError(
                f"the ranks disagree on {name}: rank 0 has {values[0]!r}, rank {other} has "
                f"{values[other]!r}; give all ranks the same shards and the same settings"
            )
