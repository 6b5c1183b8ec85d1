"""Loaders of a data module whose trainer has stopped: each pass over one is a whole epoch."""

from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from toy import Ledger, ShouldStop, StopHereError, ToyData, make_trainer

pytestmark = [
    pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
    ),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The 'test_dataloader' does not have many workers"),
]


class WithTest(Ledger):
    """Can be tested, too."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        pass


class Raises(ShouldStop):
    def act(self, trainer: Any) -> None:
        raise StopHereError


@pytest.mark.parametrize("ends", ["whole", "interrupted", "resumed"])
def test_a_train_loader_that_is_asked_for_after_a_fit_moves_on(ends, tmp_path):
    data, path, callbacks = ToyData(), None, []
    if ends == "resumed":
        saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2)
        make_trainer(tmp_path, [saver], max_steps=2).fit(Ledger(), ToyData())
        path = tmp_path / "step=2.ckpt"
    if ends == "interrupted":
        callbacks = [Raises(("on_train_batch_start", 8))]
    trainer = make_trainer(tmp_path, callbacks, limit_train_batches=4, enable_checkpointing=False)
    try:
        trainer.fit(Ledger(), data, ckpt_path=path)
    except StopHereError:
        assert ends == "interrupted"
    passes = [[pair for batch in data.train_dataloader() for pair in batch["pairs"]] for _ in "ab"]
    first = passes[0][0][0]
    assert passes == [[(epoch, i) for i in range(24)] for epoch in (first, first + 1)]
    trainer.save_checkpoint(tmp_path / "after.ckpt")  # still says where the fit has ended
    model = Ledger()
    make_trainer(tmp_path, max_epochs=4).fit(model, ToyData(), ckpt_path=tmp_path / "after.ckpt")
    assert {epoch for epoch, _, _ in model.steps} >= {3}


@pytest.mark.parametrize("evaluates", ["validate", "test after validate", "fit"])
def test_an_evaluation_loader_that_is_asked_for_after_the_trainer_has_stopped_is_whole(
    evaluates, tmp_path
):
    model, data = WithTest(), ToyData()
    trainer = make_trainer(tmp_path, limit_val_batches=1, max_epochs=1)
    if evaluates == "fit":
        trainer.fit(model, data)
    else:
        trainer.validate(model, data, verbose=False)
    if evaluates == "test after validate":
        trainer.test(model, [{"x": 1}], verbose=False)
    loader: Any = data.val_dataloader()
    assert [pair for batch in loader for pair in batch["pairs"]] == [(0, i) for i in range(5)]
