"""Lightning's finders among the callbacks: refused in a fit that resumes, left alone in others."""

from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from toy import SeenSamples, ToyData, bare_trainer, make_trainer, resumed, saved_by_step

from lightning_shards.errors import StateError

pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")

WHOLE = [(epoch, position) for epoch in range(3) for position in range(24)]


class Rated(SeenSamples):
    """Has a learning rate to be found."""

    learning_rate = 0.1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen += batch["pairs"]
        return self.layer(batch["x"]).mean()


class AtEpochStarts(LearningRateFinder):
    """Finds the rate anew at the start of some epochs, as Lightning's documentation shows."""

    def on_fit_start(self, *_: Any) -> None:
        pass

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch in {0, 2}:
            self.lr_find(trainer, pl_module)


def rate_finder() -> LearningRateFinder:
    return LearningRateFinder(num_training_steps=3, early_stop_threshold=None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of a fit by step."""
    return saved_by_step(tmp_path_factory.mktemp("saved"), Rated(), ToyData(val_samples=0))


@pytest.mark.parametrize(
    ("step", "finder", "make"),
    [
        (2, rate_finder, bare_trainer),
        (6, BatchSizeFinder, make_trainer),
        (9, rate_finder, make_trainer),
    ],
)
def test_a_finder_in_a_fit_that_resumes_is_refused_by_its_name(step, finder, make, saved, tmp_path):
    callback, model = finder(), Rated()
    name = type(callback).__name__
    with pytest.raises(StateError, match=f"{name} cannot be .*step={step}.*; run it before"):
        make(tmp_path, callbacks=[callback]).fit(
            model, ToyData(val_samples=0), ckpt_path=saved[step]
        )
    assert model.seen == WHOLE[: 4 * step]
    assert not list(tmp_path.glob(".*.ckpt"))


@pytest.mark.parametrize("step", [9, 12, 18])
def test_a_finder_at_the_start_of_an_epoch_leaves_a_fit_where_it_is(step, tmp_path):
    def finder():
        return AtEpochStarts(num_training_steps=3, early_stop_threshold=None)

    data = ToyData(val_samples=0)
    path = saved_by_step(tmp_path, Rated(), data, callbacks=[finder()])[step]
    assert resumed(tmp_path, path, data, Rated(), callbacks=[finder()]).seen == WHOLE
