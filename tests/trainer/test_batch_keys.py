"""`batch_keys`: which reserved entries a batch has, and who needs them."""

import lightning.pytorch as pl
import pytest
import torch

from lightning_shards import (
    EpochDigest,
    ExactResume,
    LoaderConfig,
    PadCollate,
    ShardPredictionWriter,
    SplitConfig,
)
from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import batch_keys

READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])
COLLATE_FNS = pytest.mark.parametrize(
    "collate_fn", [None, PadCollate(["image"])], ids=["built in", "padded"]
)


@COLLATE_FNS
@READERS
@pytest.mark.parametrize("keys", [[], ["__weight__", "__key__"], None])
def test_a_batch_has_the_entries_that_are_named(pack_shards, make_module, reader, keys, collate_fn):
    split = SplitConfig(pack_shards([5]), sampling="sequential", reader=reader)
    module = make_module(
        split,
        val=SplitConfig(split.urls, reader=reader, batch_keys=["__weight__"]),
        fields={"image": "png", "label": "cls"},
        batch_keys=keys,
        collate_fn=collate_fn,
    )
    wanted = ["__key__", "__id__"] if keys is None else sorted({*keys} - {"__weight__"})
    for batch in module.loader("train"):
        assert sorted(name for name in batch if name.startswith("__")) == sorted(wanted)
    (first, *_) = module.loader("val")
    assert [name for name in first if name.startswith("__")] == ["__weight__"]


@READERS
def test_a_replay_does_not_read_the_batches(pack_shards, make_module, reader):
    split = SplitConfig(pack_shards([3]), sampling="sequential", reader=reader, batch_keys=[])
    source = make_module(split, batch_size=3).source("train")
    (rows,) = batch_keys(source, Place(), 0, range(1), num_workers=1)
    assert [row.key for row in rows] == ["000000", "000001", "000002"]


@pytest.mark.parametrize(
    ("split", "settings", "message"),
    [
        ({"remainder": "pad"}, {}, "remainder='pad' of 'train' says by `__weight__` which samples"),
        (
            {"on_bad_sample": "substitute", "max_bad": 1},
            {},
            "on_bad_sample='substitute' of 'train' says by `__weight__`",
        ),
        ({"batch_keys": ["image"]}, {}, r"batch_keys must be one of \['__key__', '__id__', '__we"),
        ({}, {"batch_format": "tuple"}, "of 'train' has no effect with batch_format='tuple'"),
    ],
)
def test_settings_that_would_lose_weights_are_refused(make_module, split, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_module(SplitConfig("a.tar", **split), **{"batch_keys": []} | settings)


@COLLATE_FNS
def test_a_balanced_split_without_weights_may_not_repeat(pack_shards, make_module, collate_fn):
    split = SplitConfig(pack_shards([5]), remainder="balanced", sampling="sequential")
    settings = {"fields": {"image": "png"}, "collate_fn": collate_fn, "batch_keys": []}
    module = make_module(split, batch_size=1, **settings)
    assert len(list(module.loader("train"))) == 5
    message = r"^remainder='balanced' repeats 1 sample to give each of 2 ranks one at each step"
    with pytest.raises(ConfigError, match=message):
        module.loader("train", rank=0, world_size=2)
    # whoever makes batches without a check of the plan
    source = module.source("train")
    with pytest.raises(ConfigError, match="holds a sample of `__weight__` 0"):
        for _ in source.batches(Place(1, 2), Cursor()):
            pass


class KeywordModel(pl.LightningModule):
    """Calls its network as one calls those of transformers."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, *, label, image):
        return self.layer(image.float().mean((1, 2, 3))[:, None]), label

    def step(self, batch):
        loss = sum(each.float().sum() for each in self(**batch))
        self.seen += batch["label"].tolist()
        self.log("loss", loss)  # without a batch size: Lightning finds it out
        return loss

    def training_step(self, batch):
        return self.step(batch)

    def validation_step(self, batch):
        self.step(batch)

    def predict_step(self, batch):
        return batch["label"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.001)


def keyword_module(make_module, urls, **settings):
    split = SplitConfig(urls, sampling="shuffled")
    return make_module(
        split, val=urls, predict=urls, fields={"image": "png", "label": "cls"}, **settings
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_model_is_called_with_the_batch_as_keywords(
    pack_shards, make_module, make_trainer, num_workers, caplog
):
    """Warnings are errors here."""
    fork = LoaderConfig(multiprocessing_context="fork")
    data = keyword_module(
        make_module, pack_shards([4, 5]), batch_keys=[], num_workers=num_workers, loader=fork
    )
    model, callbacks = KeywordModel(), [EpochDigest(), ExactResume()]
    options = {"num_sanity_val_steps": 0, "enable_checkpointing": False}
    make_trainer(callbacks=callbacks, max_epochs=2, **options).fit(model, data)
    assert len(model.seen) == 2 * 8 + 2 * 9
    assert "as the order says" in caplog.text


def test_a_prediction_writer_says_which_entries_it_needs(
    pack_shards, make_module, make_trainer, tmp_path
):
    data = keyword_module(make_module, pack_shards([4]), batch_keys=["__key__"])
    trainer = make_trainer(callbacks=[ShardPredictionWriter(str(tmp_path / "out"), "csv")])
    with pytest.raises(ConfigError, match="`__id__` of their batch, and this one has"):
        trainer.predict(KeywordModel(), data, return_predictions=False)
