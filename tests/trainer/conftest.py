"""Data, trainers, and one fit for each switch, for all tests of this folder."""

from functools import cache
from typing import Any

import pytest
from fit_recorder import SWITCHES, TRAIN, VAL, CountedModule, Recorder, Run
from ignored_warnings import ignored_below

from lightning_shards import LoaderConfig, SplitConfig
from tests.callbacks.quiet_fits import quiet_trainer

pytest_collection_modifyitems = ignored_below(  # what Lightning's `_pytree.py` does with torch 2.13
    __file__, "`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)


@pytest.fixture(scope="session")
def make_data(pack_into, tmp_path_factory):
    """Makes data modules over one set of shards; each option of theirs can be given."""
    folder = tmp_path_factory.mktemp("data")
    urls = {"train": pack_into(folder, TRAIN, "train"), "val": pack_into(folder, VAL, "val")}

    def made(kind=CountedModule, *, sampling=None, reader="auto", **options):
        defaults: dict[str, Any] = {
            "fields": {"image": "png", "label": "cls"},
            "decode": {"image": "gray"},
            "batch_size": 2,
            "num_workers": 0,
            "loader": LoaderConfig(cache_dir=str(folder / "cache")),
            "train": SplitConfig(urls["train"], sampling=sampling, reader=reader),
            "val": SplitConfig(urls["val"]),
        }
        return kind(**(defaults | options))

    return made


@pytest.fixture(scope="session")
def make_trainer(tmp_path_factory):
    """Makes trainers that say and write nothing by themselves."""
    folder = tmp_path_factory.mktemp("trainer")

    def made(callbacks=(), **options):
        ends = None if {"max_steps", "fast_dev_run"} & options.keys() else 3
        defaults = {"max_epochs": ends, "enable_checkpointing": bool(callbacks)}
        return quiet_trainer(folder, callbacks, **defaults | options)

    return made


@pytest.fixture(scope="session")
def run_of(make_data, make_trainer):
    """One fit for each switch, made when it is first asked for."""

    @cache
    def run(switch):
        fitted = Run(Recorder(), make_data(), make_trainer(**SWITCHES[switch][0]))
        fitted.trainer.fit(fitted.model, fitted.data)
        return fitted

    return run
