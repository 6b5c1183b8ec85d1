"""A model that writes down what its rank trains on, and waits where it is told to be ended."""

import json
import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

ENDED_WITHIN_S = 300.0


class ElasticRecorder(pl.LightningModule):
    """Writes to FOLDER/attempts/NUMBER/RANK.jsonl, a line for each step and each validation batch.

    Args:
        folder: Of the whole run, whose attempts it numbers.
        stops: At each of them once, and one after the other, a rank writes its pid to
            FOLDER/stop-NUMBER.json and waits until it is killed or told to end: the number of
            ranks, the global step, and the name of the rank's launcher, or else its number.
    """

    def __init__(self, folder: str, stops: list[tuple[int, int, str]]) -> None:
        super().__init__()
        self.folder, self.stops = Path(folder), stops
        self.layer = torch.nn.Linear(1, 1)

    def on_fit_start(self) -> None:
        attempts = self.folder / "attempts"
        attempts.mkdir(exist_ok=True)
        number = self.trainer.strategy.broadcast(len(list(attempts.iterdir())))
        attempt = attempts / f"{number:03d}"
        attempt.mkdir(exist_ok=True)
        self.lines = (attempt / f"{self.global_rank}.jsonl").open("a", buffering=1)

    def on_fit_end(self) -> None:
        self.lines.close()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self._write("trained", batch["__id__"].tolist())
        self._stop_if_told()
        return self.layer(batch["label"][:, None].float()).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            pairs = zip(batch["__id__"].tolist(), batch["__weight__"].tolist(), strict=True)
            self._write("validated", [sample for sample, weight in pairs if weight])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)

    def _write(self, kind: str, ids: list[Any]) -> None:
        step, epoch, ranks = self.global_step, self.current_epoch, self.trainer.world_size
        self.lines.write(json.dumps([kind, step, epoch, ranks, ids]) + "\n")

    def _stop_if_told(self) -> None:
        reached = [self.folder / f"stop-{number}.json" for number in range(len(self.stops))]
        left = [pair for pair in zip(reached, self.stops, strict=True) if not pair[0].exists()]
        name = os.environ.get("LAUNCHER_NAME", str(self.global_rank))
        here = self.trainer.world_size, self.global_step, name
        if left and tuple(left[0][1]) == here:
            part = left[0][0].with_suffix(".part")
            part.write_text(json.dumps(os.getpid()))
            part.rename(left[0][0])
            end = time.monotonic() + ENDED_WITHIN_S
            while not self.trainer.received_sigterm:
                assert time.monotonic() < end, "nobody ended this rank"
                time.sleep(0.05)
