"""The command line for training: LightningCLI with our data module and our callbacks."""

import sys
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lightning_shards.callbacks.epoch import SetEpoch
from lightning_shards.callbacks.resume import ExactResume
from lightning_shards.callbacks.throughput import DataThroughputMonitor
from lightning_shards.datamodule import ShardDataModule


class ShardCLI(LightningCLI):
    """`LightningCLI` with `ShardDataModule`, `SetEpoch`, `ExactResume`, `DataThroughputMonitor`.

    A misspelt option is an error: options cannot be abbreviated (LightningCLI by itself reads
    ``--data.batch`` as ``--data.batch_size``).
    """

    def __init__(
        self,
        model_class: Any = None,
        datamodule_class: Any = ShardDataModule,
        **options: Any,
    ) -> None:
        cast("Any", super()).__init__(model_class, datamodule_class, **options)

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """A parser that takes no abbreviations."""
        return super().init_parser(**{"allow_abbrev": False, **kwargs})

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """The trainer, with those of our callbacks that the configuration does not bring itself."""
        given: Any = self._get(self.config_init, "trainer", default={}).get("callbacks") or []
        callbacks = cast("list[object]", given if isinstance(given, list) else [given])
        kinds = {type(callback) for callback in callbacks}
        wanted = (SetEpoch, ExactResume, DataThroughputMonitor)
        ours = [kind() for kind in wanted if kind not in kinds]
        self.trainer_defaults["callbacks"] = [*self.trainer_defaults.get("callbacks", []), *ours]
        return super().instantiate_trainer(**kwargs)


def main() -> None:
    """Run `fit`, `validate`, `test` or `predict`; modules of this folder can be named in YAML."""
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    ShardCLI()
