"""What the command line guarantees, in the names of its tests: whole commands run."""

import os
import sys

import pyarrow.parquet
import pytest
import torch
import yaml

from lightning_shards.__main__ import main

pytestmark = [
    # lightning/pytorch/utilities/_pytree.py, torch 2.13
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]

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

    training_step = lambda self, batch: self.step(batch, "train_loss")
    validation_step = lambda self, batch: self.step(batch, "val_loss")
    test_step = lambda self, batch: self.step(batch, "test_loss")

    def predict_step(self, batch):
        print("predicted", *batch["__key__"])
        print("kept in memory:", self.trainer.predict_loop.return_predictions)
        return {"label": batch["label"]}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
'''


@pytest.fixture
def run(tmp_path, pack_shards, monkeypatch, capsys, config):
    """Runs a command in a folder of 12 and 3 samples, a model and config.yaml: what it prints."""
    pack_shards([5, 7], "train")
    pack_shards([3], "val")
    (tmp_path / "net.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    urls = dict.fromkeys(("val", "test", "predict"), "shards/val-*.tar")
    urls["train"] = "shards/train-*.tar"
    data = config["data"] | {split: {"urls": url} for split, url in urls.items()}
    data |= {"batch_size": 2, "loader": {"cache_dir": "cache"}}
    trainer = config["trainer"] | {"log_every_n_steps": 2, "enable_progress_bar": False}
    trainer["logger"] = {"class_path": "CSVLogger", "init_args": {"save_dir": "."}}
    settings = {"model": {"class_path": "net.Net"}, "data": data, "trainer": trainer}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))

    def ran(*options):
        monkeypatch.setattr(sys, "argv", ["lightning-shards", *options])
        main()
        return capsys.readouterr().out

    return ran


@pytest.mark.filterwarnings("ignore:The dirpath has changed from")
def test_fit_and_test_run_with_a_model_of_the_current_folder_and_a_saved_config_resumes(
    tmp_path, run
):
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


def test_validate_and_predict_run_over_each_sample_once(run, caplog):
    assert "val_loss" in run("validate", "--config", "config.yaml")
    told = run("predict", "--config", "config.yaml", "--data.batch_size", "1")
    predicted = [line.split()[1:] for line in told.splitlines() if line.startswith("predicted")]
    assert predicted == [["000000"], ["000001"], ["000002"]]
    assert "predictions are not written; --output FOLDER writes them" in caplog.text


def test_predict_writes_its_predictions_and_keeps_none_in_memory(tmp_path, run, caplog, capsys):
    options = ["--config", "config.yaml", "--output", "out"]
    told = run("predict", *options)
    assert "kept in memory: False" in told
    assert "kept in memory: True" not in told
    written = pyarrow.parquet.read_table(tmp_path / "out").to_pydict()
    assert written == {
        "__key__": ["000000", "000001", "000002"],
        "__id__": [[0, 0], [0, 1], [0, 2]],
        "label": [0, 1, 2],
    }
    assert "predictions: 3 rows in out/predictions-*.parquet" in caplog.text
    with pytest.raises(SystemExit) as ended:
        run("predict", *options)
    assert ended.value.code == 2
    message = "error: out already holds predictions-00000-of-00001.parquet, and"
    assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("predict", *options, "--output=s3://bucket")
    assert "error: output: predictions are written to a local folder" in capsys.readouterr().err


def test_a_fit_without_a_logger_saves_no_config_over_that_of_the_user(tmp_path, run):
    mine = (tmp_path / "config.yaml").read_text()
    run("fit", "--config", "config.yaml", "--trainer.logger=false", "--data.batch_size=3")
    assert (tmp_path / "config.yaml").read_text() == mine
