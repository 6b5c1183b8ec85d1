"""What stands for a split, for several evaluation sets, a place or a loader in Python code."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError

FIELDS = {"fields": {"label": "cls"}}


@pytest.mark.parametrize("kind", ["val", "test", "predict"])
@pytest.mark.parametrize(
    ("split", "same"),
    [
        ("a.tar", SplitConfig("a.tar")),
        (Path("/nowhere/a.tar"), SplitConfig("/nowhere/a.tar")),  # it is not looked for
        (["a.tar", Path("b.tar")], SplitConfig(["a.tar", "b.tar"])),
        ({"urls": "a.tar", "batch_size": 8}, SplitConfig("a.tar", batch_size=8)),
        (OmegaConf.create({"urls": ["a.tar"]}), SplitConfig(["a.tar"])),
        (OmegaConf.create(["a.tar"]), SplitConfig(["a.tar"])),
    ],
)
def test_a_split_or_a_set_may_be_given_by_its_urls_alone_or_as_a_dict(split, same, kind):
    assert ShardDataModule(**FIELDS, **{kind: split}).splits[kind] == same
    splits = ShardDataModule(**FIELDS, **{f"{kind}_sets": {"web": split}}).splits
    assert {name: split for name, split in splits.items() if split} == {f"{kind}/web": same}


def test_sets_are_read_from_a_configuration(tmp_path):
    config = tmp_path / "config.yaml"
    sets = "{web: w.tar, by-hand: {urls: '${val_sets.web}'}}"
    config.write_text(f"fields: {{label: cls}}\nval_sets: {sets}\n")
    module = ShardDataModule.from_config(config)
    assert module.eval_names("val") == ["val/web", "val/by-hand"]
    assert module.splits["val/by-hand"] == SplitConfig("w.tar")


TYPO = {"by-hand": {"urls": "c", "batchsize": 3}}
TUPLES = {"predict_sets": {"b": {"urls": "c", "batch_keys": []}}, "batch_format": "tuple"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"val": "a", "val_sets": {"b": "c"}}, r"^val and val_sets are both .*; move val into"),
        ({"val_sets": {"a b": "c"}}, r"^val_sets has a set named 'a b', .*letters, digits, _ and"),
        ({"val_sets": {"b": 3}}, r"^val_sets\.b must be a SplitConfig or a dict .*, got int"),
        ({"val_sets": TYPO}, r"'val_sets\.by-hand' does not accept .*; did you mean 'batch_size'"),
        (TUPLES, r"batch_keys=\[\] of 'predict/b' has no effect"),
    ],
)
def test_sets_that_cannot_be_are_refused_with_the_remedy(settings, message):
    with pytest.raises(ConfigError, match=message):
        ShardDataModule(**FIELDS, **settings)


@pytest.mark.parametrize(
    ("given", "expected"), [("b", "{here}/b"), (Path("b"), "{here}/b"), ("~/b", "~/b")]
)
def test_the_cache_stays_where_it_was_when_the_run_goes_elsewhere(
    given, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert LoaderConfig(cache_dir=given).cache_dir == expected.format(here=tmp_path)


def test_a_loader_may_be_a_dict_of_its_settings_and_a_seed_has_64_bits():
    settings: dict[str, Any] = {"loader": {"pool": "inline"}, "seed": 2**64 - 1}
    module = ShardDataModule("a.tar", **FIELDS, **settings)
    assert module.loader_config == LoaderConfig(pool="inline")
    assert module.seed == 2**64 - 1
