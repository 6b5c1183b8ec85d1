"""Loaders of a data module whose trainer has stopped: each pass over one is a whole epoch."""

from typing import Any

import pytest
from toy import Ledger, ToyData, make_trainer


@pytest.mark.parametrize("evaluates", ["validate", "fit"])
def test_an_evaluation_loader_that_is_asked_for_after_the_trainer_has_stopped_is_whole(
    evaluates, tmp_path
):
    model, data = Ledger(), ToyData()
    trainer = make_trainer(tmp_path, limit_val_batches=1, max_epochs=1)
    getattr(trainer, evaluates)(model, data)
    loader: Any = data.val_dataloader()
    assert [pair for batch in loader for pair in batch["pairs"]] == [(0, i) for i in range(5)]
