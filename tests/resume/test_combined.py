"""Our loader beside a foreign one in a combined loader: epochs end with ours, or are refused."""

from itertools import repeat
from typing import Any

import pytest
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from toy import Ledger, ToyData, bare_trainer, make_trainer, positions_of, resumed, saved_by_step

from lightning_shards.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:ExactResume.* has nothing to watch")


class CombinedData(ToyData):
    """Gives batches of our loader with those of another one."""

    def __init__(self, other: Any, mode: Any) -> None:
        super().__init__()
        self.other, self.mode = other, mode

    def train_dataloader(self) -> Any:
        loaders = {"shards": super().train_dataloader(), "other": self.other}
        return CombinedLoader(loaders, self.mode) if self.mode else loaders


class Pairs(Ledger):
    """Trains on our part of the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch["shards"], batch_idx)


@pytest.mark.parametrize(
    ("other", "told", "mode", "make"),
    [
        (range(10), "has 10 batches", None, make_trainer),
        (range(10), "has 10 batches", "max_size", bare_trainer),
        (repeat(0), "has no known end", "max_size_cycle", make_trainer),
    ],
)
def test_an_epoch_that_does_not_end_with_our_loader_is_refused(other, told, mode, make, tmp_path):
    with pytest.raises(ConfigError, match=rf"6 steps, .* {told}: .*min_size"):
        make(tmp_path).fit(Pairs(), CombinedData(other, mode))


@pytest.mark.parametrize(
    ("other", "mode"), [(range(10), "min_size"), (range(6), None), (range(4), None)]
)
def test_an_epoch_that_ends_with_our_loader_is_resumed_within(other, mode, tmp_path):
    data = CombinedData(other, mode)
    path = saved_by_step(tmp_path, Pairs(), data, make=bare_trainer, max_steps=4)[4]
    model = resumed(tmp_path, path, data, Pairs(), bare_trainer)
    assert positions_of(model.steps) == {epoch: list(range(24)) for epoch in range(3)}


class ContainedData(ToyData):
    """Gives our loader alone, in a container."""

    def train_dataloader(self) -> Any:
        return {"shards": super().train_dataloader()}


def test_our_loader_alone_in_a_container_is_resumed_at_the_sample(tmp_path):
    path = saved_by_step(tmp_path, Pairs(), ContainedData(4), max_steps=4)[4]
    model = resumed(tmp_path, path, ContainedData(2), Pairs())
    assert positions_of(model.steps) == {epoch: list(range(26)) for epoch in range(3)}


@pytest.mark.parametrize("mode", ["min_size", "max_size_cycle"])
def test_an_epoch_ends_with_our_loader_where_weight_averaging_counts_one_batch_more(mode, tmp_path):
    model = Pairs()
    model.layer = nn.Sequential(model.layer, nn.BatchNorm1d(1))
    averaging = StochasticWeightAveraging(1e-2, swa_epoch_start=1)
    trainer = bare_trainer(tmp_path, callbacks=[averaging], enable_checkpointing=False)
    trainer.fit(model, CombinedData(range(6), mode))
    assert trainer.current_epoch == 4
    assert model.epoch_ends == [0, 1, 2, 3]
