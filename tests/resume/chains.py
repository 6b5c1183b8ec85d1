"""Chains of fits that change the batch size, and what they must be trained on."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import toy

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


def trained_to(variant: Variant, batch_size: int, done: int) -> int:
    """How far an epoch is trained by a fit that begins after so many of its samples."""
    epochs = EpochSchedule(toy.SAMPLES, batch_size, variant.data.get("remainder", "drop"))
    limit = variant.trainer.get("limit_train_batches")
    if isinstance(limit, float):
        limit = int(limit * epochs.steps(1))
    return epochs.plan(1, done).trained(epochs.with_limit(limit).steps(1, done))


def run_chain(folder: Path, variant: Variant, segments: Sequence[Segment]) -> int:
    """Run a chain and check what it was trained on; the number of resumes in it.

    A segment whose stop does not come runs to its end, which is then that of the chain.
    """
    totals: dict[int, int] = {}  # samples that each epoch is to be trained on
    trained, checkpoint = dict[int, list[int]](), None
    for number, segment in enumerate(segments):
        epoch = max(trained, default=0)
        done = len(trained.get(epoch, []))
        if done == totals.get(epoch):
            epoch, done = epoch + 1, 0
        for each in range(epoch, EPOCHS):
            totals[each] = trained_to(variant, segment.batch_size, done * (each == epoch))
        part, stop = folder / str(number), segment.stop
        model, data = toy.Ledger(**variant.model), toy.ToyData(segment.batch_size, **variant.data)
        snapshots, is_saved = toy.Snapshots(part, stop), bool(stop) and segment.raises
        callbacks = [snapshots if is_saved else toy.StopsAt(stop)] if stop else []
        trainer = toy.make_trainer(
            part, callbacks, enable_checkpointing=is_saved, **variant.trainer
        )
        with suppress(toy.StopHereError):
            trainer.fit(model, data, ckpt_path=checkpoint)
        if trainer.should_stop:
            snapshots.saved["stopped"] = part / "stopped.ckpt"
            trainer.save_checkpoint(part / "stopped.ckpt")
        if not snapshots.saved:
            break
        (checkpoint,) = snapshots.saved.values()
        trained = toy.positions_of(torch.load(checkpoint, weights_only=True)["ledger"]["steps"])
    else:
        raise AssertionError("the last segment of a chain has no stop")
    assert toy.positions_of(model.steps) == {each: [*range(end)] for each, end in totals.items()}
    epochs, ends = [epoch for epoch, _, _ in model.validations], model.epoch_ends
    if not all(segment.raises for segment in segments):
        # Lightning validates where it should stop, and counts that as an epoch's end
        epochs, ends = sorted({*epochs}), sorted({*ends})
    if variant.validations is None:
        assert set(epochs) == set(range(EPOCHS))
    else:
        assert tuple(epochs) == variant.validations
    assert ends == list(range(EPOCHS))
    assert trainer.current_epoch == EPOCHS
    return number
