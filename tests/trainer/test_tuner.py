"""The tuner and `seed_everything` in one process, for both readers."""

from dataclasses import replace
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import watching
from lightning.pytorch.tuner import Tuner
from watching import Watching, children

from lightning_shards.errors import ConfigError

pytestmark = pytest.mark.usefixtures("held_fork_server")

STEPS = 13  # of 2 samples

each_reader = pytest.mark.parametrize("reader", ["indexed", "stream"])


@pytest.fixture(scope="module")
def make_data(option_shards):
    return partial(watching.make_data, option_shards("one"))


@pytest.fixture
def make_trainer(tmp_path):
    options = watching.trainer_options(tmp_path)
    return lambda: pl.Trainer(**options, devices=1, max_epochs=2)


def fitted(trainer: pl.Trainer, data: Any) -> Watching:
    model = Watching()
    trainer.fit(model, data)
    return model


@pytest.mark.parametrize(("mode", "reader"), [("power", "indexed"), ("binsearch", "stream")])
def test_the_loader_follows_the_batch_size_that_the_tuner_tries(
    mode, reader, make_trainer, make_data
):
    before = set(children())
    data, model, trainer = make_data(reader, num_workers=1), Watching(), make_trainer()
    found = Tuner(trainer).scale_batch_size(
        model, datamodule=data, mode=mode, init_val=2, max_trials=3, margin=0
    )
    assert set(model.workers) - before
    assert set(children()) == before
    assert [len(ids) for _, _, ids in model.steps] == [2] * 3 + [4] * 3 + [8] * 3
    assert found == data.batch_size == 8
    steps = fitted(trainer, data).steps
    assert [len(ids) for _, _, ids in steps] == [8] * 6
    assert steps == fitted(make_trainer(), make_data(reader, batch_size=8)).steps


def test_a_batch_size_of_the_split_itself_cannot_be_tuned_and_says_so(make_trainer, make_data):
    data = make_data("indexed")
    data.splits["train"] = replace(data.splits["train"], batch_size=2)
    message = r"batch_size=4 would change nothing: 'train' has a batch_size of its own, 2; leave"
    with pytest.raises(ConfigError, match=message):
        Tuner(make_trainer()).scale_batch_size(Watching(), datamodule=data, init_val=4)


@each_reader
def test_lr_find_leaves_the_fit_after_it_as_it_would_have_been(reader, make_trainer, make_data):
    before = set(children())
    data, model, trainer = make_data(reader, num_workers=1), Watching(), make_trainer()
    Tuner(trainer).lr_find(model, datamodule=data, num_training=20, early_stop_threshold=None)
    assert set(model.workers) - before
    assert set(children()) == before
    assert len(model.steps) == 20
    fit, plain = fitted(trainer, data), fitted(make_trainer(), make_data(reader))
    assert fit.steps == plain.steps
    assert fit.validations == plain.validations
    assert trainer.global_step == 2 * STEPS


@each_reader
def test_seed_everything_changes_no_sample_and_the_loader_draws_from_no_global_generator(
    reader, make_trainer, make_data
):
    """So that dropout is the same with any data."""
    after: list[float] = []
    steps: list[Any] = []
    for seed in (1, 1, 2):
        pl.seed_everything(seed, workers=True, verbose=False)
        steps.append(fitted(make_trainer(), make_data(reader)).steps)
        after.append(float(torch.rand(1)))
    assert steps[0] == steps[1] == steps[2]
    assert after[0] == after[1] != after[2]
    pl.seed_everything(1, workers=True, verbose=False)
    Watching()  # its layer is drawn
    assert float(torch.rand(1)) == after[0]
