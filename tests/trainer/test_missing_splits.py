"""What a Trainer says of a split that is not there."""

from typing import Any

import lightning.pytorch as pl
import pytest
from fit_recorder import STEPS, VAL, CountedModule, Recorder, TrainsOnly

from lightning_shards.errors import ConfigError


def test_a_fit_without_a_val_split_runs_without_a_warning(  # a warning is an error here
    make_data, make_trainer
):
    model = TrainsOnly()
    make_trainer().fit(model, make_data(val=None))
    assert len(model.steps) == 3 * STEPS
    assert model.validations == []


def test_a_validation_step_that_has_no_val_split_is_missed_and_told_so(make_data, make_trainer):
    model = Recorder()
    with pytest.warns(UserWarning, match="defined a `validation_step` but have no"):
        make_trainer().fit(model, make_data(val=None))
    assert len(model.steps) == 3 * STEPS
    assert model.validations == []


def test_a_missing_split_is_an_error_that_says_how_to_add_it(make_data, make_trainer):
    data = make_data(train=None)
    with pytest.raises(ConfigError, match=r"no 'train' split.*train=SplitConfig"):
        make_trainer().fit(Recorder(), data)
    for verb, split in (("test", "test"), ("predict", "predict")):
        with pytest.raises(ConfigError, match=rf"no '{split}' split.*{split}=SplitConfig"):
            getattr(make_trainer(), verb)(Recorder(), data)


def test_a_val_split_that_is_added_later_is_validated_and_one_that_is_removed_is_not(
    make_data, make_trainer
):
    added, removed = make_data(val=None), make_data()
    added.splits["val"], removed.splits["val"] = removed.splits["val"], None
    model = Recorder()
    make_trainer().fit(model, added)
    assert [len(ids) for ids in model.validations] == [sum(VAL)] * 3
    make_trainer().validate(model, added, verbose=False)
    make_trainer().fit(TrainsOnly(), removed)  # a warning is an error here
    with pytest.raises(ConfigError, match=r"no 'val' split.*val=SplitConfig"):
        make_trainer().validate(Recorder(), removed)


class OwnLoaders(CountedModule):
    """Evaluates on what is not configured for it: `train` stands for each of the other splits."""

    def val_dataloader(self) -> Any:
        return self.loader("train")

    test_dataloader = predict_dataloader = val_dataloader


class Batches(pl.Callback):
    """Counts the batches of each evaluation."""

    def __init__(self) -> None:
        self.seen = 0

    def _count(self, trainer: pl.Trainer, *_: Any) -> None:
        self.seen += not trainer.sanity_checking

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _count


@pytest.mark.parametrize(
    ("verb", "is_assigned"),
    [("fit", False), ("test", False), ("validate", True), ("predict", True)],
)
def test_an_own_method_for_a_loader_needs_no_configured_split(
    verb, is_assigned, make_data, make_trainer
):
    data = make_data(CountedModule if is_assigned else OwnLoaders, val=None)
    if is_assigned:
        for split in ("val", "test", "predict"):
            setattr(data, f"{split}_dataloader", lambda: data.loader("train"))
    counter = Batches()
    trainer = make_trainer(callbacks=[counter], max_epochs=1, enable_checkpointing=False)
    getattr(trainer, verb)(Recorder(), data)
    assert counter.seen == STEPS
