"""All ranks agree on a loader once; who asks for it again, or after the fit, asks no other rank."""

from typing import Any

import lightning.pytorch as pl
import pytest
from toy import Ledger, ToyData, make_trainer

from lightning_shards import datamodule
from lightning_shards.errors import ShardError


class Asking(pl.Callback):
    """Asks for loaders at each batch, as code on one rank may; counts what that costs."""

    def __init__(self, agreed: list[Any]) -> None:
        self.agreed = agreed
        self.costs: list[int] = []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        data, before = trainer.datamodule, len(self.agreed)
        assert data.val_dataloader() is data.val_dataloader()
        data.train_dataloader()
        self.costs.append(len(self.agreed) - before)


@pytest.fixture
def asking(monkeypatch):
    """Such a callback, which sees each agreement."""
    agreed: list[Any] = []
    real = datamodule.agree

    def agree(*arguments):
        agreed.append(arguments)
        real(*arguments)

    monkeypatch.setattr(datamodule, "agree", agree)
    return Asking(agreed)


@pytest.mark.parametrize("options", [{}, {"reload_dataloaders_every_n_epochs": 1}], ids=str)
def test_asking_again_costs_no_collective(options, asking, tmp_path):
    make_trainer(tmp_path, [asking], max_epochs=2, **options).fit(Ledger(), ToyData())
    assert asking.costs == [0] * 12
    assert len(asking.agreed) == 2


class Halving(pl.Callback):
    """Changes the batch size between two epochs, as all ranks do together."""

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        trainer.datamodule.batch_size = 2


def test_a_loader_of_other_settings_is_agreed_on(asking, tmp_path):
    options = {"max_epochs": 2, "reload_dataloaders_every_n_epochs": 1}
    make_trainer(tmp_path, [asking, Halving()], **options).fit(Ledger(), ToyData())
    assert asking.costs == [0] * (6 + 13)
    assert len(asking.agreed) == 3  # train, val, and train again


class FailingData(ToyData):
    """Fails after the first epoch, before or after it is known that a loader has to be made."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage

    def source(self, split: Any, index: Any = None) -> Any:
        if self._fails("source"):
            raise ShardError("no source on this rank")
        return super().source(split, index)

    def _make_loader(self, *arguments: Any) -> Any:
        if self._fails("loader"):
            raise ShardError("no loader on this rank")
        return super()._make_loader(*arguments)

    def _fails(self, stage: str) -> bool:
        return stage == self.stage and self.trainer is not None and self.trainer.current_epoch > 0


@pytest.mark.parametrize(("stage", "agreements"), [("source", 2), ("loader", 3)])
def test_a_rank_that_fails_meets_the_others_only_where_they_make_new_loaders_too(
    stage, agreements, asking, tmp_path
):
    """Elsewhere they are in Lightning's barrier, and a collective would wait for them for ever."""
    callbacks = [asking, Halving()] if stage == "loader" else [asking]
    options = {"max_epochs": 2, "reload_dataloaders_every_n_epochs": 1}
    with pytest.raises(ShardError, match=f"no {stage} on this rank"):
        make_trainer(tmp_path, callbacks, **options).fit(Ledger(), FailingData(stage))
    assert len(asking.agreed) == agreements


@pytest.mark.parametrize("evaluates", ["validate", "fit"])
def test_an_evaluation_loader_that_is_asked_for_after_the_trainer_has_stopped_is_whole(
    evaluates, tmp_path
):
    model, data = Ledger(), ToyData()
    trainer = make_trainer(tmp_path, limit_val_batches=1, max_epochs=1)
    getattr(trainer, evaluates)(model, data)
    loader: Any = data.val_dataloader()
    assert [pair for batch in loader for pair in batch["pairs"]] == [(0, i) for i in range(5)]


@pytest.mark.parametrize(("batch_size", "is_said"), [(4, True), (2, False)])
def test_the_first_line_remarks_when_more_than_one_percent_is_dropped(
    batch_size, is_said, tmp_path, caplog
):
    caplog.set_level("INFO")
    make_trainer(tmp_path, max_epochs=1).fit(Ledger(), ToyData(batch_size))
    assert ("; drops 2 of 26 samples (7.7 %) in each epoch" in caplog.text) == is_said
