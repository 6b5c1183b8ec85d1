"""Settings of Python code that are in no container, or in a wrong one, are told as such."""

from pathlib import Path
from typing import Any

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError

MAPPINGS = ("fields", "defaults", "decode", "classes", "transforms")
LISTS = ("sample_transforms", "batch_keys")


def module(**settings: Any) -> ShardDataModule:
    return ShardDataModule(**{"train": "a.tar", "fields": {"x": "cls"}} | settings)


def split(**settings: Any) -> SplitConfig:
    return SplitConfig(**{"urls": "a.tar"} | settings)


@pytest.mark.parametrize("make", [module, split])
@pytest.mark.parametrize("name", MAPPINGS)
def test_a_setting_by_names_must_be_a_mapping_from_texts(make, name):
    for value in (["x"], "x", 3, {("x",)}):
        with pytest.raises(ConfigError, match=rf"^{name} must be a mapping, as in .*, got a "):
            make(**{name: value})
    for key in (3, None, ("x",), b"x"):
        with pytest.raises(ConfigError, match=rf"^{name} must have texts as its keys, got "):
            make(**{name: {key: "cls"}})


@pytest.mark.parametrize("suffixes", [["png"], None, 3])
def test_the_suffixes_of_a_field_must_be_a_text(suffixes):
    for make in (module, split):
        with pytest.raises(ConfigError, match=r"^fields.x must be a text, got "):
            make(fields={"x": suffixes})


def test_a_module_needs_fields():
    for train in ("a.tar", None):
        with pytest.raises(
            ConfigError, match=r"^fields must be a mapping, as in .*, got a NoneType$"
        ):
            module(fields=None, train=train)


@pytest.mark.parametrize("name", [*LISTS, "allow_unsafe", "stages"])
@pytest.mark.parametrize("value", ["pickle", {"x": abs}, 3, {"__key__"}, abs])
def test_a_setting_of_several_must_be_a_list(name, value):
    makes = {"allow_unsafe": [module], "stages": [split]}.get(name, [module, split])
    for make in makes:
        with pytest.raises(ConfigError, match=rf"^{name} must be a list"):
            make(**{name: value})


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (Path("a/b.tar"), "a/b.tar"),
        ([Path("a.tar"), "b.tar"], ["a.tar", "b.tar"]),
        ((Path("a.tar"),), ["a.tar"]),
    ],
)
def test_paths_of_shards_become_texts(urls, expected):
    made = split(urls=urls)
    assert made.urls == expected
    assert made == split(urls=expected)
    assert "PosixPath" not in repr(made)


@pytest.mark.parametrize("urls", [3, b"a.tar", {"a.tar"}, [3], ["a.tar", None], [["a.tar"]]])
def test_other_values_are_no_shards(urls):
    with pytest.raises(ConfigError, match=r"^urls(\[\d\])? must be a path"):
        split(urls=urls)


def test_a_seed_may_have_64_bits():
    assert module(seed=2**64 - 1).seed == 2**64 - 1


@pytest.mark.parametrize("options", [["hidden"], {"s3": "hidden"}, {"s3": ["hidden"]}])
def test_no_value_that_may_be_a_secret_is_shown(options):
    with pytest.raises(ConfigError) as raised:
        LoaderConfig(storage_options=options)
    assert "hidden" not in str(raised.value)


def test_no_url_of_a_wrong_kind_is_shown():
    for urls in ({"https://user:hidden@host/a.tar"}, [b"https://user:hidden@host/a.tar"]):
        with pytest.raises(ConfigError) as raised:
            split(urls=urls)
        assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "expected"), [("b", "{here}/b"), (Path("b"), "{here}/b"), ("~/b", "~/b")]
)
def test_the_cache_stays_where_it_was_when_the_run_goes_elsewhere(
    given, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert LoaderConfig(cache_dir=given).cache_dir == expected.format(here=tmp_path)


def test_a_loader_is_a_loader_config_or_its_settings():
    assert module(loader={"pool": "inline"}).loader_config == LoaderConfig(pool="inline")
    for loader in ("inline", [], None):
        with pytest.raises(ConfigError, match=r"^loader must be a LoaderConfig or a dict of its"):
            module(loader=loader)
