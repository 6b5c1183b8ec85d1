"""python tests/options/run_interrupted.py FOLDER DEVICES: a fit that waits to be ended.

Each rank writes its process id and those of its workers to FOLDER/waiting-RANK.json.
"""

import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from recorder import Recorder, children, fail_on_warnings, make_data, trainer_options, write

fail_on_warnings()  # here, as workers and spawned ranks import this script too


class Waiting(Recorder):
    """Goes on until somebody ends it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == 8:
            write(self.folder, "waiting", self.trainer.global_rank, {"workers": children()})
        if self.global_step >= 8:
            time.sleep(0.05)
        return super().training_step(batch, batch_idx)


def main(folder: Path, devices: int) -> None:
    strategy = "ddp" if devices > 1 else "auto"
    options = trainer_options(folder)
    trainer = pl.Trainer(**options, strategy=strategy, devices=devices, max_epochs=10_000)
    trainer.fit(Waiting(folder), make_data(folder, "indexed", num_workers=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
