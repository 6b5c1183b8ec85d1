"""python tests/trainer/run_launched.py FOLDER CASE...: fits by other launchers than `ddp`'s own.

`ddp_notebook` and `ddp_spawn` start their ranks themselves; the other cases are for two ranks that
`torchrun` started. What a rank saw in a case goes to FOLDER/CASE-RANK.json.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import ModelParallelStrategy
from watching import Watching, children, fail_on_warnings, make_data, trainer_options, write

fail_on_warnings()  # here, as workers and spawned ranks import this script too


class Writer(Watching):
    """Writes its record after the data's teardown: ranks of `ddp_spawn` give nothing back."""

    def __init__(self, folder: Path, case: str) -> None:
        super().__init__()
        self.folder, self.case = folder, case

    def teardown(self, stage: str) -> None:
        loader: Any = self.trainer.train_dataloader
        seen = self.seen | {
            "place": [loader.place.rank, loader.place.world_size],
            "world_size": self.trainer.world_size,
            "left": children(),
        }
        write(self.folder, self.case, self.trainer.global_rank, seen)


class TensorParallel(Writer):
    """A model of two ranks that are one: its layer is not cut, which its data need not know."""

    def configure_model(self) -> None:
        assert self.device_mesh is not None
        assert self.device_mesh["tensor_parallel"].size() == 2


def fit(model: Writer, strategy: Any) -> None:
    options = trainer_options(model.folder)
    data = make_data(model.folder, "indexed", num_workers=1)
    trainer = pl.Trainer(**options, strategy=strategy, devices=2, max_epochs=2)
    trainer.fit(model, data)


def fit_tensor_parallel(folder: Path, case: str) -> None:
    strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2)
    fit(TensorParallel(folder, case), strategy)


CASES: dict[str, Callable[[Path, str], None]] = {
    "ddp_notebook": lambda folder, case: fit(Writer(folder, case), case),
    "ddp_spawn": lambda folder, case: fit(Writer(folder, case), case),
    "torchrun": lambda folder, case: fit(Writer(folder, case), "ddp"),
    "tensor_parallel": fit_tensor_parallel,
}


def main(folder: Path, cases: list[str]) -> None:
    for case in cases:
        CASES[case](folder, case)
        if "torchrun" not in cases:
            print(f"{case} left {children()}", flush=True)  # noqa: T201 for the test to read


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
