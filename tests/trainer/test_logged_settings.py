"""Loggers get the settings of the data when a fit starts; checkpoints are what they were."""

import torch

from lightning_shards import DecodeResize, LoaderConfig, ShardDataModule, SplitConfig
from tests.callbacks.quiet_fits import KeptMetrics, OneWeight, quiet_trainer


class KeptSettings(KeptMetrics):
    """Keeps what it is given."""

    def log_hyperparams(self, params, *_, **__):
        self.settings = params["data"]


def doubled(label: int) -> int:
    return 2 * label


def test_a_logger_gets_plain_settings_without_urls_and_a_checkpoint_gets_none(
    pack_shards, tmp_path
):
    [url] = pack_shards([8])
    data = ShardDataModule(
        SplitConfig(url, sampling="shuffled", keep={"hash_of": "key", "of": 2, "parts": [0, 1]}),
        test=SplitConfig(url, fields={"x": "jpg"}, transforms={"x": DecodeResize(size=8)}),
        fields={"label": "cls"},
        transforms={"label": doubled},
        batch_size=4,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(tmp_path), storage_options={"s3": {"region": "x"}}),
    )
    logger = KeptSettings()
    trainer = quiet_trainer(tmp_path, [], logger=logger, log_every_n_steps=1)
    trainer.fit(OneWeight(), data)
    settings = logger.settings
    assert (settings["batch_size"], settings["fields"]) == (4, {"label": "cls"})
    assert settings["transforms"] == {"label": "doubled"}
    assert settings["train"]["sampling"] == "shuffled"
    assert settings["test"]["transforms"]["x"]["DecodeResize"]["size"] == 8
    assert settings["loader"]["prefetch_factor"] == 2
    text = str(settings)
    assert not any(word in text for word in (str(tmp_path), ".tar", "region", "hash_of"))
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    saved = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert data.hparams == {}
    assert not any("hyper" in key or "hparams" in key for key in saved)
    assert set(saved["ShardDataModule"]) == {
        "version", "epoch", "samples", "epoch_samples", "global_batch", "reader", "seed", "kept",
        "sampling", "shards", "order_version", "shuffle_block", "shuffle_run", "image_backend",
    }  # fmt: skip
