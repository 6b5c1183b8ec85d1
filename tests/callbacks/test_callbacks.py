"""What callbacks guarantees, in the names of its tests."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_shards import (
    DataThroughputMonitor,
    EpochDigest,
    ExactResume,
    SetEpoch,
    SplitConfig,
)
from lightning_shards.errors import ConfigError
from tests.callbacks.quiet_fits import EvaluatedWeight, quiet_trainer


@pytest.fixture
def data(pack_shards, make_module):
    split = SplitConfig(pack_shards([9, 8]), sampling="shuffled")
    return make_module(split, val=split, test=split, predict=split)


@pytest.fixture
def make_trainer(tmp_path):
    return lambda *callbacks, **options: quiet_trainer(tmp_path, callbacks, **options)


@pytest.mark.parametrize("kind", [SetEpoch, EpochDigest, ExactResume, DataThroughputMonitor])
def test_a_train_loader_of_another_rank_is_refused_before_the_first_batch(kind, data, make_trainer):
    loader = data.loader("train", rank=0, world_size=2)
    message = r"of rank 0 of 2, and this process is rank 0 of 1.*datamodule=.*rank="
    with pytest.raises(ConfigError, match=message):
        make_trainer(kind(), limit_val_batches=0).fit(EvaluatedWeight(), loader)
    assert loader.times.batches == 0


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_the_digest_refuses_a_loader_of_another_rank_in_an_evaluation(stage, data, make_trainer):
    split: Any = {"validate": "val"}.get(stage, stage)
    loader = data.loader(split, rank=1, world_size=2)
    with pytest.raises(ConfigError, match="of rank 1 of 2, and this process is rank 0 of 1"):
        getattr(make_trainer(EpochDigest()), stage)(EvaluatedWeight(), loader)


@pytest.mark.parametrize("callbacks", [[], [SetEpoch()]], ids=["alone", "SetEpoch"])
def test_a_loader_given_by_hand_goes_on_with_the_next_epoch_where_epochs_are_cut(
    callbacks, data, make_trainer
):
    options: dict[str, Any] = {"limit_val_batches": 0, "limit_train_batches": 2, "max_epochs": 3}
    model, whole = EvaluatedWeight(), data.loader("train")
    make_trainer(*callbacks, **options).fit(model, data.loader("train"))
    epochs = [torch.cat([batch["__id__"] for batch in whole]).tolist()[:4] for _ in range(3)]
    assert model.ids == [each for epoch in epochs for each in epoch]
    assert epochs[0] != epochs[1]


def plain_loader() -> Any:
    return DataLoader(torch.ones(4, 1))


def test_exact_resume_says_that_there_is_nothing_to_resume(data, make_trainer):
    two = {"a": plain_loader(), "b": plain_loader()}
    for loaders in (plain_loader(), data.loader("train"), two):
        trainer = make_trainer(ExactResume(), limit_val_batches=0)
        with pytest.warns(UserWarning, match=r"ExactResume\(\) .* nothing .*datamodule="):
            trainer.fit(EvaluatedWeight(), loaders)


def test_set_epoch_says_that_nothing_asks_for_the_epoch(make_trainer):
    trainer = make_trainer(SetEpoch(), limit_val_batches=0)
    with pytest.warns(UserWarning, match=r"SetEpoch\(\) .* nothing .*`set_epoch`"):
        trainer.fit(EvaluatedWeight(), plain_loader())


def test_nothing_is_said_over_a_data_module_of_ours(data, make_trainer):
    make_trainer(ExactResume(), SetEpoch(), limit_val_batches=0).fit(EvaluatedWeight(), data)
