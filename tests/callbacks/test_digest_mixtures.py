"""The digest proves a mixture as it does any order, and finds one that was tampered with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest

from lightning_shards import EpochDigest, ExactResume, LoaderConfig, ShardDataModule
from lightning_shards.errors import DigestError
from lightning_shards.plan.digest import digest_ids
from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.readers.indexed import IndexedSource
from tests.callbacks.quiet_fits import OneWeight, quiet_trainer
from tests.mixed_shards import mix_of, module_of

NAMES = ("web", "labels", "more")


def module(folder: Path, split: dict[str, Any] | None = None, **settings: Any) -> ShardDataModule:
    return module_of(folder, mix_of(folder / "shards", NAMES), split, **settings)


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    return quiet_trainer(folder, [EpochDigest(), ExactResume()], **{"max_epochs": 2} | options)


@pytest.mark.parametrize(
    ("split", "steps", "num_workers"),
    [
        ({}, 4, 0),
        ({"sampling": "resampled"}, 4, 2),
        (
            {"schedule": [{"epoch": 1, "weights": {"more": 1}}], "unit": 8, "dataset_size": 128},
            8,
            0,
        ),
    ],
)
def test_each_epoch_of_a_mix_is_proven_with_the_digest_of_what_was_trained(
    tmp_path: Path, said: Any, split: dict[str, Any], steps: int, num_workers: int
) -> None:
    model = OneWeight()
    loader = LoaderConfig(cache_dir=str(tmp_path / "cache"), multiprocessing_context="fork")
    data = module(tmp_path, split, num_workers=num_workers, loader=loader)
    trainer(tmp_path, limit_train_batches=steps).fit(model, data)
    for epoch in range(2):
        ids = model.ids[epoch * 8 * steps : (epoch + 1) * 8 * steps]
        assert said()[f"epoch {epoch}"] == (
            f"{8 * steps} samples in {steps} steps of 1 rank, as the order says "
            f"(digest {digest_ids(np.array(ids)):016x})"
        )


def test_the_rest_of_an_epoch_is_proven_after_a_resume(tmp_path: Path, said: Any) -> None:
    first = trainer(tmp_path, max_steps=3)
    first.fit(OneWeight(), module(tmp_path))
    first.save_checkpoint(tmp_path / "saved.ckpt")
    data = module(tmp_path, batch_size=2)
    trainer(tmp_path).fit(OneWeight(), data, ckpt_path=tmp_path / "saved.ckpt")
    assert said()["epoch 0"].startswith("8 samples in 4 steps of 1 rank from sample 24 on, as the")


def no_next_pass(source: IndexedSource) -> IndexedSource:
    """A component begins with its first pass anew in each epoch."""

    class FromTheStart(type(source.order)):
        def at_spans(self, epoch: int, spans: Any) -> Any:
            return super().at_spans(0, spans)

    return replace(source, order=FromTheStart(source.order.mix, source.order.slots))


def test_a_mix_whose_order_was_tampered_with_ends_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    true = IndexedSource.batches

    def tampered(self: IndexedSource, *given: Any) -> Any:
        is_mixture = isinstance(self.order, MixtureOrder)  # a first sample is of a component alone
        return true(no_next_pass(self) if is_mixture else self, *given)

    monkeypatch.setattr(IndexedSource, "batches", tampered)
    message = "epoch 1: the samples served to 1 rank are not those of the order"
    with pytest.raises(DigestError, match=message):
        trainer(tmp_path).fit(OneWeight(), module(tmp_path))
    assert list(said()) == ["epoch 0"]
