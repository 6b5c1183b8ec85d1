"""Settings that a callback changes between epochs: a resumed run goes on as one without a stop."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from toy import Ledger, ToyData, bare_trainer, make_trainer

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
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1)
    whole = Ledger()
    make(tmp_path, callbacks=[saver, Changes(change)], **options).fit(whole, ToyData())
    for step in (3, 6, 9):
        resumed, path = Ledger(), tmp_path / f"step={step}.ckpt"
        trainer = make(tmp_path, callbacks=[Changes(change)], enable_checkpointing=False, **options)
        trainer.fit(resumed, ToyData(), ckpt_path=path)
        assert resumed.steps == whole.steps
    data = ToyData()
    take_other_shards(data)
    with pytest.raises(StateError, match="shards='toy-26', this run has 'toy-35'"):
        make(tmp_path, **options).fit(Ledger(), data, ckpt_path=tmp_path / "step=6.ckpt")
