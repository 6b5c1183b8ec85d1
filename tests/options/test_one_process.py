"""Options that need no second rank: the tuner, seeds, written predictions; for both readers."""

from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.tuner import Tuner

from lightning_shards.errors import ConfigError
from tests.options import recorder

pytestmark = [
    pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
    ),
    pytest.mark.usefixtures("held_fork_server"),
]

STEPS = 13  # of 2 samples
VAL_SAMPLES = 7

each_reader = pytest.mark.parametrize("reader", ["indexed", "stream"])


@pytest.fixture(scope="module")
def folder(option_shards):
    return option_shards("one")


@pytest.fixture
def make_trainer(tmp_path):
    """Makes trainers with our callbacks."""

    def made(*callbacks, **options):
        common = recorder.trainer_options(tmp_path, callbacks)
        return pl.Trainer(**common, devices=1, **{"max_epochs": 2} | options)

    return made


def fitted(trainer: pl.Trainer, data: Any) -> Any:
    model = recorder.Recorder()
    trainer.fit(model, data)
    return model.seen


def sizes_of(seen: Any) -> list[int]:
    return [len(ids) for _, _, ids in seen["train"]]


@pytest.mark.parametrize(("mode", "reader"), [("power", "indexed"), ("binsearch", "stream")])
def test_the_loader_follows_the_batch_size_that_the_tuner_tries(mode, reader, make_trainer, folder):
    before = set(recorder.children())
    data = recorder.make_data(folder, reader, num_workers=1)
    model, trainer = recorder.Recorder(), make_trainer()
    found = Tuner(trainer).scale_batch_size(
        model, datamodule=data, mode=mode, init_val=2, max_trials=3, margin=0
    )
    assert len({*model.seen["workers"]} - before) >= 1
    assert set(recorder.children()) == before
    assert sizes_of(model.seen) == [2] * 3 + [4] * 3 + [8] * 3
    assert found == data.batch_size == 8
    model = recorder.Recorder()
    trainer.fit(model, data)
    assert sizes_of(model.seen) == [8] * 6
    assert model.seen["train"] == fitted(make_trainer(), recorder.make_data(
        folder, reader, batch_size=8
    ))["train"]  # fmt: skip


def test_a_batch_size_of_the_split_itself_cannot_be_tuned_and_says_so(make_trainer, folder):
    data = recorder.make_data(folder, "indexed")
    data.splits["train"] = replace(data.splits["train"], batch_size=2)
    message = r"batch_size=4 would change nothing: 'train' has a batch_size of its own, 2; leave"
    with pytest.raises(ConfigError, match=message):
        Tuner(make_trainer()).scale_batch_size(recorder.Recorder(), datamodule=data, init_val=4)
    with pytest.raises(ConfigError, match=message):
        data.batch_size = 4


@each_reader
def test_lr_find_leaves_the_fit_after_it_as_it_would_have_been(reader, make_trainer, folder):
    before = set(recorder.children())
    data = recorder.make_data(folder, reader, num_workers=1)
    model, trainer = recorder.Recorder(), make_trainer()
    Tuner(trainer).lr_find(model, datamodule=data, num_training=20, early_stop_threshold=None)
    assert len({*model.seen["workers"]} - before) >= 1
    assert set(recorder.children()) == before
    plain = fitted(make_trainer(), recorder.make_data(folder, reader))
    assert len(model.seen["train"]) == 20
    for names in model.seen.values():
        if isinstance(names, list):
            names.clear()
    trainer.fit(model, data)
    assert model.seen["train"] == plain["train"]
    assert model.seen["val"] == plain["val"]
    assert trainer.global_step == 2 * STEPS


@each_reader
def test_seed_everything_changes_no_sample_and_the_loader_draws_from_no_global_generator(
    reader, make_trainer, folder
):
    """So that dropout is the same with any data."""
    after: list[float] = []
    steps: list[Any] = []
    for seed in (1, 1, 2):
        pl.seed_everything(seed, workers=True, verbose=False)
        steps.append(fitted(make_trainer(), recorder.make_data(folder, reader))["train"])
        after.append(float(torch.rand(1)))
    assert steps[0] == steps[1] == steps[2]
    assert after[0] == after[1] != after[2]
    pl.seed_everything(1, workers=True, verbose=False)
    recorder.Recorder()  # its layer is drawn
    assert float(torch.rand(1)) == after[0]
