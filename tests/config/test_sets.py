"""Several evaluation sets are given by their names, in code and in a configuration of any form."""

from pathlib import Path
from typing import Any

import pytest

from lightning_shards import ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError

FIELDS = {"fields": {"label": "cls"}}
SETTINGS = ["val_sets", "test_sets", "predict_sets"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_set_is_given_as_a_split_is(setting):
    kind = setting.removesuffix("_sets")
    given: dict[str, Any] = {
        "urls": "a.tar",
        "list": ["a.tar", Path("b.tar")],
        "dict": {"urls": "a.tar", "batch_size": 3},
        "split": SplitConfig("a.tar", sampling="shuffled"),
    }
    splits = ShardDataModule(**FIELDS, **{setting: given}).splits
    assert {name: split for name, split in splits.items() if split} == {
        f"{kind}/urls": SplitConfig("a.tar"),
        f"{kind}/list": SplitConfig(["a.tar", "b.tar"]),
        f"{kind}/dict": SplitConfig("a.tar", batch_size=3),
        f"{kind}/split": SplitConfig("a.tar", sampling="shuffled"),
    }


def test_sets_are_read_from_a_configuration(tmp_path):
    config = tmp_path / "config.yaml"
    sets = "{web: w.tar, by-hand: {urls: '${val_sets.web}'}}"
    config.write_text(f"fields: {{label: cls}}\nval_sets: {sets}\n")
    module = ShardDataModule.from_config(config)
    assert module.eval_names("val") == ["val/web", "val/by-hand"]
    assert module.splits["val/by-hand"] == SplitConfig("w.tar")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"val": "a", "val_sets": {"b": "c"}},
            r"^val and val_sets are both given.*; move val into",
        ),
        (
            {"val_sets": {"a b": "c"}},
            r"^val_sets has a set named 'a b', .*letters, digits, _ and -",
        ),
        ({"val_sets": {"b": 3}}, r"^val_sets\.b must be a SplitConfig or a dict .*, got int"),
        (
            {"val_sets": {"by-hand": {"urls": "c", "batchsize": 3}}},
            r"'val_sets\.by-hand' does not accept option 'batchsize'; did you mean 'batch_size'\?",
        ),
        (
            {"predict_sets": {"b": {"urls": "c", "batch_keys": []}}, "batch_format": "tuple"},
            r"batch_keys=\[\] of 'predict/b' has no effect",
        ),
    ],
)
def test_sets_that_cannot_be_are_refused_with_the_remedy(settings, message):
    with pytest.raises(ConfigError, match=message):
        ShardDataModule(**FIELDS, **settings)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            {"a": "a", "w-b": {"urls": "a", "batch_size": 0}},
            r"^data\.val_sets\.w-b: batch_size must",
        ),
        (
            {"a": "a", "web": 3},
            r"^data\.val_sets: Not a valid .*SplitConfig. Got value: 3$",
        ),
    ],
)
def test_an_error_of_a_configuration_names_the_key_of_the_set(sets, message):
    with pytest.raises(ConfigError, match=message):
        ShardDataModule.from_config({**FIELDS, "val_sets": sets})
