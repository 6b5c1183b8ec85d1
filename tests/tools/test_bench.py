"""`lightning-shards bench` measures a real fit, writes nowhere, and says what it found."""

import json
import os
import sys

import pytest

from lightning_shards.tools import bench

pytestmark = [
    # Lightning 2.6's own use of jsonargparse 4.53
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed"),
]

PROJECT = """
import lightning.pytorch as pl
import torch


class Model(pl.LightningModule):
    def configure_model(self):
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        print("a model that prints")
        loss = self.layer(batch["label"].float().reshape(-1, 1)).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        raise AssertionError("nobody asked for a validation")

    def on_train_epoch_end(self):
        self.trainer.callback_metrics["val_loss"]

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


class WritesCallback(pl.Callback):
    def __init__(self) -> None:
        raise AssertionError("callbacks of the configuration are left out")
"""
"""A model that tries what a benchmark must survive."""


@pytest.fixture(scope="module")
def folder(pack_into, tmp_path_factory):
    """A project: code, shards, and a configuration that would write into runs/."""
    folder = tmp_path_factory.mktemp("bench")
    pack_into(folder / "shards", [9, 14, 11], "train")
    (folder / "bench_project.py").write_text(PROJECT)
    config = {
        "seed_everything": 1,
        "trainer": {
            "accelerator": "cpu",
            "strategy": "ddp",
            "devices": 2,
            "default_root_dir": "runs",
            "max_steps": 1,
            "callbacks": [{"class_path": "bench_project.WritesCallback"}],
        },
        "model": {"class_path": "bench_project.Model"},
        "data": {
            "train": {"urls": "shards/train-*.tar"},
            "val": {"urls": "shards/train-*.tar"},
            "fields": {"label": "cls"},
            "batch_size": 4,
            "num_workers": 1,
            "loader": {"cache_dir": "cache"},
        },
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Runs the command in this process and folder: exit status, stdout, stderr."""

    def run(*arguments):
        status = 0
        try:
            bench.main(["--config=config.yaml", "--seconds=0.1", *arguments])
        except SystemExit as stop:
            status = stop.code
        return status, *capsys.readouterr()

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["lightning-shards"])
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    yield run
    sys.modules.pop("bench_project", None)


@pytest.mark.slow
def test_loader_and_step_are_measured_and_nothing_is_written(run, folder):
    (folder / "more.yaml").write_text("data: {batch_size: 3}")  # the later file overrides
    status, out, errors = run("--config=more.yaml", "--num-workers", "0", "2", "--json")
    assert status == 0, errors
    found = json.loads(out)  # what the model prints is not in it
    assert "a model that prints" in errors
    loader = {row["num_workers"]: row["samples_per_s"] for row in found["loader"]}
    assert found["num_workers"] in loader.keys() == {0, 2}
    rates = [*loader.values(), *(found[of] for of in ("transforms", "training_step"))]
    assert all(0 < rate < 1e9 for rate in rates)
    assert found["limit"] in ("loader", "training step")
    assert not (folder / "runs").exists()


def test_an_option_that_neither_bench_nor_fit_has_is_refused(run):
    status, out, errors = run("--secons=1")
    assert (status, out) == (2, "")
    assert "nrecognized arguments: --secons=1" in errors
