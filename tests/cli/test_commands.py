"""Whole commands, in this process: fit, test, resume, and what they leave behind."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightning_shards.__main__ import main

MODEL = '''
import torch
import lightning.pytorch as pl

class Net(pl.LightningModule):
    """Named in the configuration as net.Net, found in the folder of the command."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 10)

    def step(self, batch, name):
        logits = self.layer(batch["image"].flatten(1).float())
        loss = torch.nn.functional.cross_entropy(logits, batch["label"])
        self.log(name, loss)
        return loss

    def training_step(self, batch):
        return self.step(batch, "train_loss")

    def validation_step(self, batch):
        self.step(batch, "val_loss")

    def test_step(self, batch):
        self.step(batch, "test_loss")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
'''


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The dirpath has changed from")
def test_fit_and_test_run_with_a_model_of_the_current_folder_and_a_saved_config_resumes(
    tmp_path: Path,
    pack_shards: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any],
) -> None:
    pack_shards([5, 7], "train")
    pack_shards([3], "val")
    (tmp_path / "net.py").write_text(MODEL)
    data = config["data"] | {
        split: {"urls": f"shards/{name}-*.tar"}
        for split, name in {"train": "train", "val": "val", "test": "val"}.items()
    }
    data |= {"batch_size": 2, "loader": {"cache_dir": "cache"}}
    trainer = config["trainer"] | {"log_every_n_steps": 2, "enable_progress_bar": False}
    trainer["logger"] = {
        "class_path": "lightning.pytorch.loggers.CSVLogger",
        "init_args": {"save_dir": "."},
    }
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"model": {"class_path": "net.Net"}, "data": data, "trainer": trainer})
    )
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["lightning-shards", *options])
        main()
        return capsys.readouterr().out

    run("fit", "--config", "config.yaml")
    saved = tmp_path / "lightning_logs/version_0"
    [checkpoint] = (saved / "checkpoints").glob("*.ckpt")
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 6
    assert "data/wait_fraction" in (saved / "metrics.csv").read_text()
    assert "test_loss" in run("test", "--config", "config.yaml", "--ckpt_path", str(checkpoint))
    options = ["--config", str(saved / "config.yaml"), "--trainer.max_epochs=2"]
    run("fit", *options, "--ckpt_path", str(checkpoint))
    [resumed] = tmp_path.glob("lightning_logs/version_2/checkpoints/*.ckpt")
    assert torch.load(resumed, weights_only=True)["global_step"] == 12
    assert os.environ["PL_GLOBAL_SEED"] == "0"
