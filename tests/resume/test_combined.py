"""Our loader beside a foreign one in a combined loader: epochs end with ours, or are refused."""

from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from toy import Ledger, ToyData, bare_trainer, make_trainer, positions_of

from lightning_shards.errors import ConfigError

pytestmark = [
    pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
    ),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used"),
    pytest.mark.filterwarnings("ignore:ExactResume.* has nothing to watch"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
]


class Endless:
    """Batches without a known end."""

    def __iter__(self) -> Any:
        return iter(range(1000))


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
        (Endless(), "has no known end", "max_size_cycle", make_trainer),
    ],
)
def test_an_epoch_that_does_not_end_with_our_loader_is_refused(other, told, mode, make, tmp_path):
    with pytest.raises(ConfigError, match=rf"6 steps, .* {told}: .*min_size"):
        make(tmp_path).fit(Pairs(), CombinedData(other, mode))


@pytest.mark.parametrize(
    ("other", "mode"), [(range(10), "min_size"), (range(6), None), (range(4), None)]
)
def test_an_epoch_that_ends_with_our_loader_is_resumed_within(other, mode, tmp_path):
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=4)
    trainer = bare_trainer(tmp_path, callbacks=[saver], max_steps=4)
    trainer.fit(Pairs(), CombinedData(other, mode))
    model = Pairs()
    path = tmp_path / "step=4.ckpt"
    bare_trainer(tmp_path).fit(model, CombinedData(other, mode), ckpt_path=path)
    assert positions_of(model.steps) == {epoch: list(range(24)) for epoch in range(3)}


@pytest.mark.parametrize("mode", ["min_size", "max_size_cycle"])
def test_an_epoch_ends_with_our_loader_where_weight_averaging_counts_one_batch_more(mode, tmp_path):
    model = Pairs()
    model.layer = nn.Sequential(model.layer, nn.BatchNorm1d(1))
    averaging = StochasticWeightAveraging(1e-2, swa_epoch_start=1)
    trainer = bare_trainer(tmp_path, callbacks=[averaging], enable_checkpointing=False)
    trainer.fit(model, CombinedData(range(6), mode))
    assert trainer.current_epoch == 4
    assert model.epoch_ends == [0, 1, 2, 3]


def contained(kind: str, loader: Any) -> Any:
    containers: dict[str, Any] = {
        "dict": {"shards": loader},
        "list": [loader],
        "nested": {"shards": (loader,)},
        "CombinedLoader": CombinedLoader({"shards": loader}, "min_size"),
    }
    return containers[kind]


class ContainedData(ToyData):
    """Gives our loader alone, in a container."""

    def __init__(self, kind: str, batch_size: int = 4) -> None:
        super().__init__(batch_size)
        self.kind = kind

    def train_dataloader(self) -> Any:
        return contained(self.kind, super().train_dataloader())


class Contained(Ledger):
    """Trains on the one part that batches have."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        part = batch if isinstance(batch, list) else batch["shards"]
        return super().training_step(part if "pairs" in part else part[0], batch_idx)


@pytest.mark.parametrize(
    ("kind", "batch_size"), [("dict", 2), ("list", 4), ("nested", 2), ("CombinedLoader", 4)]
)
def test_our_loader_alone_in_a_container_is_resumed_at_the_sample(kind, batch_size, tmp_path):
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    make_trainer(tmp_path, [saver]).fit(Contained(), ContainedData(kind))
    found = {}
    for step in (4, 6):  # within an epoch, and after its last batch, before its validation
        model, path = Contained(), tmp_path / f"step={step}.ckpt"
        make_trainer(tmp_path).fit(model, ContainedData(kind, batch_size), ckpt_path=path)
        validated = [epoch for epoch, *_ in model.validations]
        found[step] = (positions_of(model.steps), validated)
    ends = [24, 26, 26] if batch_size == 2 else [24] * 3
    after_last = dict(enumerate(map(list, map(range, ends))))
    within = after_last | {0: list(range(ends[1]))}
    assert found == {4: (within, [0, 1, 2]), 6: (after_last, [0, 1, 2])}
