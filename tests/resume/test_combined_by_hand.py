"""A loader of ours that a trainer was given by hand, beside others: it ends with the epoch."""

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from lightning_shards import LoaderConfig, SetEpoch, ShardDataModule, SplitConfig
from lightning_shards.errors import StateError

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]

STEPS = 3


class Keys(pl.LightningModule):
    """Keeps the keys of our batches, by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.epochs: dict[int, list[Any]] = {}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        keys = batch["shards"] and batch["shards"]["__key__"]
        self.epochs.setdefault(self.current_epoch, []).append(keys)
        return self.layer.weight.sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["epochs"] = {epoch: list(keys) for epoch, keys in self.epochs.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.epochs = checkpoint["epochs"]


@pytest.fixture
def make_loader(pack_shards, tmp_path):
    urls = pack_shards([4, 2])

    def make():
        config = LoaderConfig(cache_dir=str(tmp_path / "cache"))
        train = SplitConfig(urls, sampling="shuffled")
        data = ShardDataModule(
            train, fields={"label": "cls"}, batch_size=2, num_workers=0, loader=config
        )
        return data.loader("train")

    return make


@pytest.fixture
def make_trainer(tmp_path):
    def make(*callbacks):
        return pl.Trainer(
            accelerator="cpu",
            callbacks=list(callbacks),
            default_root_dir=tmp_path,
            enable_checkpointing=any(isinstance(each, ModelCheckpoint) for each in callbacks),
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
            max_epochs=2,
        )

    return make


@pytest.fixture
def fit(make_loader, make_trainer, tmp_path):
    """Two epochs of our loader and another; each step and each validation is saved."""

    def run(mode, others, *callbacks, **options):
        savers = [
            ModelCheckpoint(tmp_path / "saved", "{step}", every_n_train_steps=1, save_top_k=-1),
            ModelCheckpoint(tmp_path / "saved", "validated-{step}", save_top_k=-1),
        ]
        trainer = make_trainer(*callbacks, *([] if options else savers))
        model, other = Keys(), DataLoader(range(others))
        loaders = CombinedLoader({"shards": make_loader(), "other": other}, mode)
        trainer.fit(model, loaders, DataLoader(range(2)), **options)
        return model

    return run


@pytest.mark.parametrize("callbacks", [[], [SetEpoch()]], ids=["alone", "SetEpoch"])
def test_a_loader_that_ends_with_the_epoch_is_resumed_at_the_ends_of_epochs_alone(
    callbacks, fit, tmp_path
):
    whole = fit("min_size", 5, *callbacks).epochs
    assert [len(keys) for keys in whole.values()] == [STEPS] * 2
    paths = sorted(tmp_path.glob("saved/*.ckpt"))
    assert len(paths) == 2 * STEPS + 2
    for path in paths:
        if int(path.stem.partition("=")[2]) % STEPS == 0:
            assert fit("min_size", 5, *callbacks, ckpt_path=path).epochs == whole, path.name
        else:
            with pytest.raises(StateError, match=r"after \d samples of epoch \d, .*datamodule="):
                fit("min_size", 5, *callbacks, ckpt_path=path)


def test_a_resume_after_our_loaders_end_within_the_epoch_is_refused(fit, tmp_path):
    whole = fit("max_size", 5).epochs
    assert [keys.count(None) for keys in whole.values()] == [2, 2]
    assert fit("max_size", 5, ckpt_path=tmp_path / "saved/step=5.ckpt").epochs == whole
    with pytest.raises(StateError, match=r"in epoch 1, .* epoch 0, .*datamodule="):
        fit("max_size", 5, ckpt_path=tmp_path / f"saved/step={STEPS + 1}.ckpt")


@pytest.mark.parametrize("others", [2, STEPS])
def test_a_loader_that_does_not_end_before_the_epoch_is_trained_on(others, fit):
    epochs = fit("max_size_cycle", others).epochs
    assert [len(keys) for keys in epochs.values()] == [STEPS] * 2
    assert epochs[0] != epochs[1]


def test_a_loader_may_be_iterated_again_and_again_after_a_fit(make_loader, make_trainer):
    loader = make_loader()
    make_trainer().fit(Keys(), {"shards": loader}, DataLoader(range(2)))
    assert [len(list(loader)) for _ in range(2)] == [STEPS] * 2
