"""Passwords, signatures and commands in URLs: in no repr, message, context, log or checkpoint."""

import logging
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_shards import (
    DataThroughputMonitor,
    EpochDigest,
    ExactResume,
    LoaderConfig,
    SetEpoch,
    ShardDataModule,
    ShardIndex,
    SplitConfig,
    expand_urls,
)
from lightning_shards.errors import ShardError
from lightning_shards.readers.stream_stages import read_shard
from tests.readers.file_server import serving

SECRET = "s3cr3t"
URLS = [
    f"https://user:{SECRET}@host/a/{{00..09}}.tar",
    f"https://host/000.tar?signature={SECRET}",
    f"pipe:curl -H {SECRET} https://host/000.tar",
    f"pipe:TOKEN={SECRET} curl https://host/000.tar",
    f"https://host/0.tar::https://user:{SECRET}@host/1.tar",
    f"/data/0.tar::https://host/1.tar?signature={SECRET}",
    f"{{https://user:{SECRET}@host/0,https://host/1}}.tar",
    f"s3://key:{SECRET}@bucket/0.tar",
]


def all_of(error: BaseException | None) -> str:
    """Whatever a logger may show of an error and of those behind it."""
    if error is None:
        return ""
    notes = getattr(error, "__notes__", [])
    own = [str(error), repr(error), repr(error.args), repr(vars(error)), *notes]
    return "\n".join([*own, all_of(error.__cause__), all_of(error.__context__)])


@pytest.mark.parametrize("url", URLS)
def test_no_secret_is_in_the_repr_of_a_split(url):
    for urls in (url, [url, "b.tar"]):
        assert SECRET not in repr({"train": SplitConfig(urls, sampling="shuffled")})


def test_no_secret_is_in_the_repr_of_what_is_made_of_a_split(tmp_path):
    data = ShardDataModule(
        SplitConfig(f"http://user:{SECRET}@127.0.0.1:9/0.tar?sig={SECRET}", dataset_size=9),
        fields={"label": "cls"},
        num_workers=0,
        batch_size=2,
        loader=LoaderConfig(cache_dir=str(tmp_path)),
    )
    loader = data.loader("train")
    for each in (data, loader, loader.source, loader.pool, data.splits, loader.state_dict()):
        assert SECRET not in repr(each) + str(each)
    assert "1 shard," in repr(ShardIndex((URLS[0],), None))


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@host/{{0..9.tar",
        f"{{https://user:{SECRET}@host/0.tar",
        f"s3://key:{SECRET}@bucket/0.tar",
        f"nowhere://key:{SECRET}@bucket/0.tar",
        f"https://user:{SECRET}@host/*.tar?sig={SECRET}",
        f"https://user:{SECRET}@host/\x01.tar",
        f"https://user:a/{SECRET}@host/0.tar",
        f"https://user:{SECRET}?b@host/0.tar",
        f"pipe:curl -H {SECRET} https://host/000.tar",
    ],
)
def test_no_secret_is_in_what_refuses_a_url(url):
    with pytest.raises(ShardError) as caught:
        expand_urls(url)
    assert SECRET not in all_of(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": "wrong"}, {"misspelt": 1}, {"batch_size": 0}, {"batch_size": "x"},
        {"stages": ["nowhere.f"]}, {"transforms": {"x": "nowhere.f"}},
    ],
    ids=str,
)  # fmt: skip
def test_no_secret_is_in_what_refuses_a_configuration(changes):
    urls = f"https://user:{SECRET}@host/0.tar"
    with pytest.raises(ShardError) as caught:
        ShardDataModule.from_config({"fields": {"x": "cls"}, "train": {"urls": urls} | changes})
    assert SECRET not in all_of(caught.value)


@pytest.fixture
def root(pack_shards, tmp_path):
    """Two shards on a server, the second of which is cut."""
    _, cut = (Path(url) for url in pack_shards([6, 3]))
    cut.write_bytes(cut.read_bytes()[:3600])
    with serving(tmp_path / "shards") as server:
        yield f"user:{SECRET}@127.0.0.1:{server.server_port}"


@pytest.mark.network
@pytest.mark.parametrize("name", ["shard-000001.tar", "gone.tar"])
def test_no_secret_is_behind_the_error_of_a_shard_that_cannot_be_fetched(name, root):
    with pytest.raises(ShardError) as caught:
        list(read_shard(f"http://{root}/{name}?sig={SECRET}", None))
    assert SECRET not in all_of(caught.value)


class Model(pl.LightningModule):
    """Trains on nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.layer.weight.sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.network
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:You have overridden `on_after_batch_transfer`")
def test_a_fit_leaves_no_secret_in_its_logs_and_files(root, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    data = ShardDataModule(
        SplitConfig(f"http://{root}/shard-000000.tar?sig={SECRET}", dataset_size=6),
        fields={"label": "cls"},
        num_workers=0,
        batch_size=2,
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[SetEpoch(), ExactResume(), EpochDigest(), DataThroughputMonitor()],
        default_root_dir=tmp_path / "run",
        logger=CSVLogger(tmp_path / "run"),
        log_every_n_steps=1,
        max_epochs=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), data)
    assert SECRET not in caplog.text
    assert SECRET not in "".join(capfd.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {".ckpt", ".csv"} <= {path.suffix for path in files}
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
