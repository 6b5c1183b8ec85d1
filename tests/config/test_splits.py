"""What stands for a split, a place or a loader in Python code."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig


@pytest.mark.parametrize(
    ("split", "same"),
    [
        ("a.tar", SplitConfig("a.tar")),
        (Path("/nowhere/a.tar"), SplitConfig("/nowhere/a.tar")),  # it is not looked for
        (["a.tar", Path("b.tar")], SplitConfig(["a.tar", "b.tar"])),
        ({"urls": "a.tar", "batch_size": 8}, SplitConfig("a.tar", batch_size=8)),
        (OmegaConf.create({"urls": ["a.tar"]}), SplitConfig(["a.tar"])),
        (OmegaConf.create(["a.tar"]), SplitConfig(["a.tar"])),
        (None, None),
    ],
)
def test_a_split_may_be_given_by_its_urls_alone_or_as_a_dict(split, same):
    module = ShardDataModule("t.tar", val=split, fields={"label": "cls"})
    assert module.splits["val"] == same


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
    module = ShardDataModule("a.tar", fields={"x": "cls"}, **settings)
    assert module.loader_config == LoaderConfig(pool="inline")
    assert module.seed == 2**64 - 1
