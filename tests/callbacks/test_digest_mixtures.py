"""The digest proves a mixture as it does any order, and finds one that was tampered with."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from lightning_shards import EpochDigest, ExactResume, LoaderConfig, ShardDataModule
from lightning_shards.errors import DigestError
from lightning_shards.plan.digest import digest_ids
from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.plan.mixture_schedule import schedule_mixture
from lightning_shards.readers.indexed import IndexedSource
from tests.mixed_shards import mix_of, module_of

pytestmark = pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)

NAMES = ("web", "labels", "more")


class Model(pl.LightningModule):
    """Knows the ids that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.ids: list[list[int]] = []

    def training_step(self, batch: Any) -> torch.Tensor:
        self.ids += batch["__id__"].tolist()
        return self.weight * batch["label"].float().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def module(folder: Path, split: dict[str, Any] | None = None, **settings: Any) -> ShardDataModule:
    return module_of(folder, mix_of(folder / "shards", NAMES), split, **settings)


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=[EpochDigest(), ExactResume()],
        default_root_dir=folder,
        enable_checkpointing=False,
        **{"max_epochs": 2} | quiet | options,
    )


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines of the callback, by epoch."""
    caplog.set_level(logging.INFO)
    pattern = re.compile(r"(epoch \d+): (\d.*)")
    return lambda: dict(
        match.groups() for match in map(pattern.fullmatch, caplog.messages) if match
    )


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
    model = Model()
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
    first.fit(Model(), module(tmp_path))
    first.save_checkpoint(tmp_path / "saved.ckpt")
    data = module(tmp_path, batch_size=2)
    trainer(tmp_path).fit(Model(), data, ckpt_path=tmp_path / "saved.ckpt")
    assert said()["epoch 0"].startswith("8 samples in 4 steps of 1 rank from sample 24 on, as the")


def other_samples(source: IndexedSource) -> IndexedSource:
    """The samples of one component come in another order of its own."""
    web, *others = source.order.mix
    web = replace(web, order=replace(web.order, seed=web.order.seed + 1))
    return replace(source, order=replace(source.order, mix=(web, *others)))


def other_quotas(source: IndexedSource) -> IndexedSource:
    """A round has a sample more of one component, and one less of another."""
    schedule = schedule_mixture({"web": 4, "labels": 3, "more": 1}, round_units=8, epoch_samples=32)
    slots = replace(source.order.slots, schedule=schedule)
    return replace(source, order=replace(source.order, slots=slots))


def no_next_pass(source: IndexedSource) -> IndexedSource:
    """A component begins with its first pass anew in each epoch."""

    class FromTheStart(type(source.order)):
        def at_spans(self, epoch: int, spans: Any) -> Any:
            return super().at_spans(0, spans)

    return replace(source, order=FromTheStart(source.order.mix, source.order.slots))


@pytest.mark.parametrize(
    ("tamper", "epoch"), [(other_samples, 0), (other_quotas, 0), (no_next_pass, 1)]
)
def test_a_mix_whose_order_was_tampered_with_ends_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any, tamper: Any, epoch: int
) -> None:
    true = IndexedSource.batches

    def tampered(self: IndexedSource, *given: Any) -> Any:
        is_mixture = isinstance(self.order, MixtureOrder)  # a first sample is of a component alone
        return true(tamper(self) if is_mixture else self, *given)

    monkeypatch.setattr(IndexedSource, "batches", tampered)
    message = f"epoch {epoch}: the samples served to 1 rank are not those of the order"
    with pytest.raises(DigestError, match=message):
        trainer(tmp_path).fit(Model(), module(tmp_path))
    assert list(said()) == [f"epoch {each}" for each in range(epoch)]
