"""Chains of fits that change the batch size, and what they must be trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from toy import SAMPLES, Ledger, ToyData, fit_until, positions_of

from lightning_shards.plan.epoch import EpochSchedule

EPOCHS = 3


@dataclass(frozen=True)
class Variant:
    """What stays the same in a chain."""

    name: str
    trainer: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    validations: tuple[int, ...] | None = (0, 1, 2)  # their epochs; None: one or more in each


@dataclass(frozen=True)
class Segment:
    """One fit of a chain: where it stops, None for its end.

    It raises an error there, or sets `trainer.should_stop` and saves after the fit.
    """

    batch_size: int
    stop: tuple[str, int] | None = None
    raises: bool = True


class Expectation:
    """How far each epoch must be trained, from the plans and from where the chain was cut."""

    def __init__(self, variant: Variant) -> None:
        self._remainder = variant.data.get("remainder", "drop")
        self._limit = variant.trainer.get("limit_train_batches")
        self.totals: dict[int, int] = {}
        self._open = (0, 0)  # the epoch, and samples of it that earlier segments trained

    def cut(self, segment: Segment, positions: dict[int, list[int]]) -> None:
        """The segment was stopped when these positions had been trained."""
        first, last = self._open[0], max([0, *positions])
        for epoch in range(first, last + 1):
            if len(positions.get(epoch, [])) == self._total(segment, epoch):
                self.totals[epoch] = self._total(segment, epoch)
        self._open = (last, len(positions.get(last, [])))
        if last in self.totals:
            self._open = (last + 1, 0)

    def end(self, segment: Segment) -> dict[int, list[int]]:
        """The positions of each epoch when the segment was not stopped."""
        for epoch in range(self._open[0], EPOCHS):
            self.totals[epoch] = self._total(segment, epoch)
        return {epoch: list(range(total)) for epoch, total in self.totals.items()}

    def _total(self, segment: Segment, epoch: int) -> int:
        done = self._open[1] if epoch == self._open[0] else 0
        epochs = EpochSchedule(SAMPLES, segment.batch_size, self._remainder)
        limit = self._limit
        if isinstance(limit, float):
            limit = int(limit * epochs.steps(1))
        steps = epochs.with_limit(limit).steps(1, done)
        return epochs.plan(1, done).trained(steps)


def run_chain(folder: Path, variant: Variant, segments: Sequence[Segment]) -> int:
    """Run a chain and check what it was trained on; the number of resumes in it.

    A segment whose stop does not come runs to its end, which is then that of the chain.
    """
    expectation, checkpoint = Expectation(variant), None
    for number, segment in enumerate(segments):
        data = ToyData(segment.batch_size, **variant.data)
        stop, model = (segment.stop, segment.raises), Ledger(**variant.model)
        part = folder / str(number)
        told = fit_until(part, model, data, checkpoint, stop, **variant.trainer)
        checkpoint = told["saved"]
        if checkpoint is None:
            break
        state = torch.load(checkpoint, weights_only=True)
        expectation.cut(segment, positions_of(state["ledger"]["steps"]))
    else:
        raise AssertionError("the last segment of a chain has no stop")
    assert positions_of(told["steps"]) == expectation.end(segment)
    epochs, ends = [epoch for epoch, _, _ in told["validations"]], told["epoch_ends"]
    if not all(segment.raises for segment in segments):
        # Lightning validates where it should stop, and counts that as an epoch's end
        epochs, ends = sorted({*epochs}), sorted({*ends})
    if variant.validations is None:
        assert set(epochs) == set(range(EPOCHS))
    else:
        assert tuple(epochs) == variant.validations
    assert ends == list(range(EPOCHS))
    assert told["current_epoch"] == EPOCHS
    return number
