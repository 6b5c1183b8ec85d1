"""Chains of fits that change batch size and number of ranks, and what they must be trained on."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rank import ANSWER
from toy import SAMPLES, Ledger, Snapshots, StopHereError, ToyData, make_trainer, positions_of

from lightning_shards.plan.schedule import EpochSchedule

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
    """One fit of a chain: where it stops, None for its end."""

    batch_size: int
    world_size: int = 1
    stop: tuple[str, int] | None = None


Fit = Callable[[Path, Variant, Segment, str | None], dict[str, Any]]
"""(folder, variant, segment, checkpoint) -> what the model told, and the checkpoint it `saved`."""


def fit_here(
    folder: Path, variant: Variant, segment: Segment, checkpoint: str | None
) -> dict[str, Any]:
    """A fit of one rank in this process."""
    model = Ledger(**variant.model)
    callbacks = [Snapshots(folder, segment.stop)] if segment.stop else []
    trainer = make_trainer(folder, callbacks, **variant.trainer)
    saved = None
    try:
        trainer.fit(model, ToyData(segment.batch_size, **variant.data), ckpt_path=checkpoint)
    except StopHereError:
        saved = str(next(iter(callbacks[0].saved.values())))
    return model.told() | {"saved": saved, "current_epoch": trainer.current_epoch}


class Ranks:
    """Four processes, of which groups of any size up to that are made."""

    def __init__(self, folder: Path, number: int = 4) -> None:
        script = Path(__file__).with_name("rank.py")
        self._errors = (folder / "stderr.txt").open("w+")
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
            for rank in range(number)
        ]

    def fit(
        self, folder: Path, variant: Variant, segment: Segment, checkpoint: str | None
    ) -> dict[str, Any]:
        """A fit of as many ranks as the segment has; all of them say the same."""
        job = {
            "folder": str(folder),
            "port": free_port(),
            "checkpoint": checkpoint,
            "batch_size": segment.batch_size,
            "world_size": segment.world_size,
            "stop": segment.stop,
            "trainer": variant.trainer,
            "data": variant.data,
            "model": variant.model,
        }
        ranks = self._processes[: segment.world_size]
        for process in ranks:
            assert process.stdin is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        answers = [self._answer(process) for process in ranks]
        assert all(answer == answers[0] for answer in answers), answers
        assert "error" not in answers[0], answers[0]["error"]
        return answers[0]

    def _answer(self, process: Any) -> dict[str, Any]:
        for line in process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        self._errors.seek(0)
        raise AssertionError(f"a rank ended:\n{self._errors.read()[-4000:]}")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self._errors.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


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
            limit = int(limit * epochs.steps(segment.world_size))
        steps = epochs.with_limit(limit).steps(segment.world_size, done)
        return epochs.plan(segment.world_size, done).trained(steps)


def run_chain(fit: Fit, folder: Path, variant: Variant, segments: Sequence[Segment]) -> int:
    """Run a chain and check what it was trained on; the number of resumes in it.

    A segment whose stop does not come runs to its end, which is then that of the chain.
    """
    expectation, checkpoint = Expectation(variant), None
    for number, segment in enumerate(segments):
        told = fit(folder / str(number), variant, segment, checkpoint)
        checkpoint = told["saved"]
        if checkpoint is None:
            break
        state = torch.load(checkpoint, weights_only=True)
        expectation.cut(segment, positions_of(state["ledger"]["steps"]))
    else:
        raise AssertionError("the last segment of a chain has no stop")
    assert positions_of(told["steps"]) == expectation.end(segment)
    epochs = [epoch for epoch, _, _ in told["validations"]]
    if variant.validations is None:
        assert set(epochs) == set(range(EPOCHS))
    else:
        assert tuple(epochs) == variant.validations
    assert told["epoch_ends"] == list(range(EPOCHS))
    assert told["current_epoch"] == EPOCHS
    return number
