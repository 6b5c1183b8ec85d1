"""Who is told which epoch it is, and whether in time for the data that is drawn."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lightning_shards import SetEpoch, SplitConfig
from lightning_shards.errors import StateError
from tests.callbacks.quiet_fits import OneWeight, quiet_trainer

SAMPLES, BATCH_SIZE, STEPS = 12, 3, 4


# --- with fakes: who is told, and what -----------------------------------------------------------


def fake_trainer(epoch: int, *loaders: object) -> Any:
    """A trainer within a fit of these loaders."""
    combined = SimpleNamespace(flattened=list(loaders))
    return SimpleNamespace(current_epoch=epoch, fit_loop=SimpleNamespace(_combined_loader=combined))


def test_every_part_of_all_loaders_that_has_set_epoch_is_told():
    told: list[int] = []

    def part(**parts: Any) -> Any:
        return SimpleNamespace(set_epoch=told.append, **parts)

    loader = part(sampler=part(), batch_sampler=part(sampler=part()), dataset=part())
    SetEpoch().on_train_epoch_start(fake_trainer(3, loader, part()), SimpleNamespace())
    assert told == [3] * 6


# --- with real loaders: in time -------------------------------------------------------------------


class EpochInItems(Dataset[tuple[int, int]]):
    """Its items are (the epoch it was told, number)."""

    epoch = -1

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[int, int]:
        return self.epoch, number

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Recorder(OneWeight):
    """Writes down the batches that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, Any]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        is_foreign = isinstance(batch, list)
        numbers = torch.stack(batch, 1) if is_foreign else batch["__id__"]
        self.batches.append((self.current_epoch, numbers.tolist()))
        return super().training_step(batch, batch_idx)


class Saver(ModelCheckpoint):
    """Leaves no trace in its checkpoints: Lightning asks for callbacks that have a state."""

    def state_dict(self) -> dict[str, Any]:
        return {}


def fit(
    loader: Any, folder: Path, callbacks: Sequence[Any] = (SetEpoch(),), **options: Any
) -> Recorder:
    """Three epochs; every step is saved, and so is the end of every epoch."""
    callbacks, is_saved = list(callbacks), "ckpt_path" not in options
    if is_saved:
        callbacks += [
            Saver(folder / "saved", "step-{step}", every_n_train_steps=1, save_top_k=-1),
            Saver(folder / "saved", "epoch-{epoch}", save_top_k=-1),
        ]
    model = Recorder()
    trainer = quiet_trainer(folder, callbacks, max_epochs=3, enable_checkpointing=is_saved)
    trainer.fit(model, loader, **options)
    return model


def items_loader(num_workers: int) -> Any:
    dataset = EpochInItems()
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, seed=1)
    return DataLoader(dataset, BATCH_SIZE, sampler=sampler, num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_datasets_and_samplers_know_the_epoch_before_data_is_drawn(num_workers, tmp_path):
    model = fit(items_loader(num_workers), tmp_path)
    # In a fresh process the first epoch's iterator is older than any hook, and workers have a copy
    # of the dataset by then: this epoch is right for who calls his first epoch 0.
    assert all(told == epoch for epoch, items in model.batches if epoch for told, _ in items)
    assert len(model.batches) == 3 * STEPS
    orders = {epoch: [n for e, items in model.batches if e == epoch for _, n in items]
              for epoch in range(3)}  # fmt: skip
    assert len(set(map(str, orders.values()))) == 3


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_first_epoch_of_a_resumed_fit_is_that_of_a_fit_that_never_stopped(
    num_workers, tmp_path
):
    """Lightning itself takes epoch 0's sampler, and workers with no epoch at all: #21938."""
    whole = fit(items_loader(num_workers), tmp_path)
    resumed = fit(
        items_loader(num_workers), tmp_path, ckpt_path=tmp_path / "saved" / "epoch-epoch=0.ckpt"
    )
    assert resumed.batches == whole.batches[STEPS:]


# --- our own loader, given to a Trainer without the data module -----------------------------------


@pytest.fixture
def make_loader(pack_shards, make_module):
    urls = pack_shards([5, 4, 3])
    return lambda size=BATCH_SIZE: make_module(SplitConfig(urls), batch_size=size).loader("train")


@pytest.mark.parametrize(("checkpoint", "step"), [("epoch-epoch=0", 4), ("epoch-epoch=1", 8)])
def test_a_shard_loader_of_its_own_resumes_at_an_epochs_end(
    checkpoint, step, make_loader, tmp_path
):
    whole = fit(make_loader(), tmp_path)
    resumed = fit(make_loader(), tmp_path, ckpt_path=tmp_path / "saved" / f"{checkpoint}.ckpt")
    assert resumed.batches == whole.batches[step:]


@pytest.mark.parametrize(("step", "callbacks"), [(3, []), (6, [SetEpoch()])], ids=["3", "6"])
@pytest.mark.parametrize("batch_size", [2, 3, 4])
def test_a_shard_loader_of_its_own_does_not_resume_within_an_epoch(
    step, batch_size, callbacks, make_loader, tmp_path
):
    """Lightning would go on by its count of batches: step 4 is the last one of its epoch."""
    fit(make_loader(), tmp_path)
    path = tmp_path / "saved" / f"step-step={step}.ckpt"
    epoch, batches = divmod(step, STEPS)
    told = f"after {BATCH_SIZE * batches} samples of epoch {epoch}, .*"
    with pytest.raises(StateError, match=f"{told * (batch_size == BATCH_SIZE)}as datamodule="):
        fit(make_loader(batch_size), tmp_path, callbacks, ckpt_path=path)
