"""`trace` and `bench` of remote shards: what they say of local ones, and where the time goes."""

import json
import sys
import textwrap

import pytest
import yaml

from lightning_shards.tools import bench, trace

pytestmark = [
    pytest.mark.network,
    pytest.mark.usefixtures("quick"),
    # Lightning 2.6's own use of jsonargparse 4.53
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
]

MODEL = """
    import lightning.pytorch as pl
    import torch


    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch):
            return self.layer(batch["label"].float().reshape(-1, 1)).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes a configuration of these shards, whose model can be imported."""
    (tmp_path / "remote_bench.py").write_text(textwrap.dedent(MODEL))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "argv", ["lightning-shards"])
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    yield lambda urls: write(tmp_path, urls)
    sys.modules.pop("remote_bench", None)


def write(folder, urls):
    train = {"urls": urls, "sampling": "shuffled", "shuffle_run": 2}
    loader = {"cache_dir": str(folder / "cache"), "pool": "inline"}
    data = {"train": train, "fields": {"label": "cls"}, "batch_size": 2, "num_workers": 0}
    trainer = {"accelerator": "cpu", "devices": 1, "logger": False}
    content = {"seed_everything": 1, "trainer": trainer, "data": data | {"loader": loader}}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content | {"model": {"class_path": "remote_bench.Model"}}))
    return str(path)


def rows_of(capsys, path):
    trace.main(["--config", path, "--epoch", "1", "--steps", "0:8", "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_trace_of_remote_shards_is_that_of_local_ones(config, published_shards, local, capsys):
    remote, own = rows_of(capsys, config(published_shards)), rows_of(capsys, config(local))
    assert "s3cr3t" not in json.dumps(remote)
    assert len(remote.pop("shards")) == len(own.pop("shards")) > 0
    assert remote == own


def test_remote_shards_are_measured(config, published_shards, capsys):
    arguments = ["--config", config(published_shards), "--seconds", "0.1", "--num-workers", "0"]
    bench.main([*arguments, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["loader"][0]["samples_per_s"] > 0
    assert "s3cr3t" not in json.dumps(told)
