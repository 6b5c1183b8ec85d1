"""Loaders of a data module whose trainer has stopped: each pass over one is a whole epoch."""

from typing import Any

import pytest
from toy import Ledger, ToyData, make_trainer


class WithTest(Ledger):
    """Can be tested, too."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        pass


@pytest.mark.filterwarnings("ignore:The 'test_dataloader' does not have many workers")
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
