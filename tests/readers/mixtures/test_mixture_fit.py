"""Mixtures that are streamed, as users configure them: a split, a loader, a fit and its resume."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_shards import ExactResume, LoaderConfig, ShardDataModule, SplitConfig

# lightning/pytorch/utilities/_pytree.py, torch 2.13
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")

WEIGHTS = {"web": 5, "labels": 2, "synth": 1}


@pytest.fixture
def make_module(shards_of, tmp_path):
    """Makes modules of a mixture that is streamed; settings of the split and of the module."""

    def make(own=None, batch_size=8, num_workers=0, pool="processes", **split):
        mix = {
            name: {"urls": shards_of[name], "weight": weight, **(own or {}).get(name, {})}
            for name, weight in WEIGHTS.items()
        }
        loader = LoaderConfig(pool, cache_dir=str(tmp_path / "cache"))
        return ShardDataModule(
            SplitConfig(mix=mix, **{"reader": "stream", "dataset_size": 40, **split}),
            fields={"label": "cls"},
            batch_size=batch_size,
            num_workers=num_workers,
            loader=loader,
        )

    return make


class Ledger(LightningModule):
    """Notes the components of all batches that it is trained on."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.rows = []

    def training_step(self, batch):
        self.rows += batch["__component__"].tolist()
        return self.weight * batch["label"].float().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(folder, **settings):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(
        accelerator="cpu",
        callbacks=[ExactResume()],
        default_root_dir=folder,
        enable_checkpointing=False,
        **quiet,
        **settings,
    )


def slots_of(module):
    return module.loader("train").source.slots


@pytest.mark.parametrize(("pool", "num_workers"), [("processes", 0), ("threads", 2)])
def test_a_fit_goes_on_with_another_batch_size_where_the_sequence_was(
    make_module, tmp_path, pool, num_workers
):
    model, path = Ledger(), tmp_path / "half.ckpt"
    module = make_module(batch_size=4, pool=pool, num_workers=num_workers)
    fit = trainer(tmp_path, max_steps=13)
    fit.fit(model, module)
    fit.save_checkpoint(path)
    slots = slots_of(module)
    sequence = np.concatenate([slots.components(epoch, 0, 40) for epoch in range(3)]).tolist()
    assert model.rows == sequence[:52]
    resumed = Ledger()
    stages = [{"samples": 80, "weights": {"labels": 1}}]
    module = make_module(batch_size=7, schedule=stages, pool=pool, num_workers=num_workers)
    trainer(tmp_path, max_epochs=3).fit(resumed, module, ckpt_path=path)
    labels = slots.names.index("labels")
    # from 12 samples of epoch 1 on, 4 steps of 7; then an epoch of 5 steps with the new weights
    assert resumed.rows == sequence[52:80] + [labels] * 35
