"""Settings that a callback changes between epochs: a resumed run goes on as one without a stop."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
from toy import Ledger, ToyData, bare_trainer, make_trainer, resumed, saved_by_step

from lightning_shards.errors import StateError


class Changes(pl.Callback):
    """Changes the data after the second epoch."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self.change = change

    def on_train_epoch_end(self, trainer: Any, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == 1:
            self.change(trainer.datamodule)


def take_other_shards(data: ToyData) -> None:
    data.samples["train"] = 35


def halve_batches(data: ToyData) -> None:
    data.batch_size = 2


@pytest.mark.parametrize("make", [make_trainer, bare_trainer])
@pytest.mark.parametrize("change", [take_other_shards, halve_batches])
def test_a_checkpoint_is_compared_with_the_loader_that_the_fit_begins_with(change, make, tmp_path):
    options = {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 4}
    whole, changes = Ledger(), {"callbacks": [Changes(change)]}
    saved = saved_by_step(tmp_path, whole, every=3, make=make, **changes, **options)
    for step in (3, 6, 9):
        assert resumed(tmp_path, saved[step], make=make, **changes, **options).steps == whole.steps
    data = ToyData()
    take_other_shards(data)
    with pytest.raises(StateError, match="shards='toy-26', this run has 'toy-35'"):
        resumed(tmp_path, saved[6], data, make=make, **options)
