"""A model that knows what its weights were trained on, and waits where it is told to be ended."""

import json
import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from lightning_shards.collectives import gather

ENDED_WITHIN_S = 300.0


def _of_all_ranks(ids: list[Any]) -> list[Any]:
    return [each for of_rank in gather(ids) for each in of_rank]


class ElasticRecorder(pl.LightningModule):
    """Keeps its ledger with its weights, and writes it to FOLDER/ledger.json when it is trained.

    Args:
        folder: Of the whole run.
        stops: At each of them once, and one after the other, a rank writes its pid to
            FOLDER/stop-NUMBER.json and waits until it is killed or told to end: the number of
            ranks, the global step, and the name of the rank's launcher, or else its number.
    """

    def __init__(self, folder: str, stops: list[tuple[int, int, str]]) -> None:
        super().__init__()
        self.folder, self.stops = Path(folder), stops
        self.layer = torch.nn.Linear(1, 1)
        self.trained: list[Any] = []  # [number of ranks, epoch, ids] of each step
        self.validated: list[Any] = []  # [epoch, ids] of each batch

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids = _of_all_ranks(batch["__id__"].tolist())
        self.trained.append([self.trainer.world_size, self.current_epoch, ids])
        self._stop_if_told()
        return self.layer(batch["label"][:, None].float()).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            pairs = zip(batch["__id__"].tolist(), batch["__weight__"].tolist(), strict=True)
            ids = _of_all_ranks([sample for sample, weight in pairs if weight])
            self.validated.append([self.current_epoch, ids])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ledger"] = [list(self.trained), list(self.validated)]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.trained, self.validated = checkpoint["ledger"]

    def on_fit_end(self) -> None:
        if self.trainer.is_global_zero:
            told = json.dumps([self.trained, self.validated])
            (self.folder / "ledger.json").write_text(told)

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
