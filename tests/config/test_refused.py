"""Settings that cannot work are refused where they are written, with name, value and remedy."""

from typing import Any

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError


def module(**settings: Any) -> ShardDataModule:
    return ShardDataModule(**{"train": "a.tar", "fields": {"label": "cls"}} | settings)


def split(**settings: Any) -> SplitConfig:
    return SplitConfig(**{"urls": "a.tar"} | settings)


STRANDS = {"shuffle_strands": 8, "sampling": "shuffled"}
ALIKE = {"field": "a", "group": 2}


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (split, {"urls": ""}, r"urls is empty; give a path, a pattern like"),
        (split, {"sampling": "random"}, r"sampling must be one of .*'shuffled'.*got 'random'"),
        (split, {"on_bad_sample": "substitute"}, r"max_bad=0 .* 'substitute' needs .*, at least 1"),
        (split, {"max_bad": 3}, r"max_bad=3 does not go with .*='raise': .* 'raise' takes 0"),
        (split, {"batch_size": "8"}, r"batch_size must be a whole number of at least 1, got '8'"),
        (split, {"shuffle_run": -1}, r"shuffle_run must be a whole number of at least 0, got -1"),
        (split, {"shuffle_strands": 8}, r"=8 does not go with sampling=None: .*leave one of them"),
        (split, {**STRANDS, "reader": "stream"}, "reader='stream': it needs"),
        (
            split,
            STRANDS | {"batch_alike": ALIKE},
            "=8 does not go with batch_alike: .*; change tha",
        ),
        (split, {"stages": [iter, "mix"]}, r"stages\[1\] is 'mix', which cannot be loaded: No mod"),
        (LoaderConfig, {"pool": "dask"}, r"pool must be one of \['processes', .*, got 'dask'"),
        (
            LoaderConfig,
            {"pin_memory": True, "pool": "threads"},
            "=True goes with .*'threads'; leav",
        ),
        (LoaderConfig, {"worker_timeout_s": float("inf")}, r"worker_.* must .*at least 0, got inf"),
        (module, {"seed": -1}, r"seed must be a whole number of at least 0, got -1"),
        (module, {"batch_format": "list"}, r"batch_format must be one of \['dict', .*, got 'list'"),
        (module, {"transforms": {"label": 3}}, r"transforms.label must be a callable.*got 3"),
        (module, {"decode": {"label": "jxl"}}, r"asks for decoder 'jxl', which does not exist"),
        (module, {"decode": {"image": "rgb"}}, r"decode names \['image'\]"),
        (module, {"fields": {}}, r"fields is empty"),
        (module, {"fields": None}, r"^fields must be a mapping, as in .*, got a NoneType$"),
        (module, {"fields": {"x": ["png"]}}, r"^fields.x must be a text, got "),
        (module, {"loader": "inline"}, r"^loader must be a LoaderConfig or a dict of its"),
        (
            module,
            {"device_transforms": {"lable": abs}},
            r"names \['lable'\], .*'label'.*; name an ",
        ),
        (module, {"val": {"url": "a.tar"}}, r"'val' does not accept option 'url'; did you .*'urls"),
        (module, {"val": {"urls": "a", "batch_size": "x"}}, r"^val.batch_size: .*'int'>.* x$"),
        (module, {"val": {1, 2}}, r"^val must be a SplitConfig or a dict of its .*, got set$"),
        (module, {"val": []}, r"^urls is empty; give a path"),
        (split, {"urls": {"https://user:hidden@host/a.tar"}}, "^urls must be a path, .* a set$"),
        (split, {"urls": [b"https://me:hidden@host/a"]}, "^urls.0. must be a path or .* bytes$"),
        (LoaderConfig, {"storage_options": {"s3": ["hidden"]}}, "^storage_options of s3 must"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, settings, message):
    with pytest.raises(ConfigError, match=message) as refused:
        make(**settings)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("make", [module, split])
@pytest.mark.parametrize("name", ["fields", "defaults", "decode", "classes", "transforms"])
def test_a_setting_by_names_must_be_a_mapping_from_texts(make, name):
    with pytest.raises(ConfigError, match=rf"^{name} must be a mapping, as in .*, got a list$"):
        make(**{name: ["x"]})
    with pytest.raises(ConfigError, match=rf"^{name} must have texts as its keys, got 3"):
        make(**{name: {3: "cls"}})


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (split, "sample_transforms"),
        (split, "batch_keys"),
        (split, "stages"),
        (module, "allow_unsafe"),
    ],
)
def test_a_setting_of_several_must_be_a_list(make, name):
    for value in ("pickle", {"x": abs}, abs):
        with pytest.raises(ConfigError, match=rf"^{name} must be a list"):
            make(**{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"val": SplitConfig("a.tar", fields={"x": "cls"})},
        {"train": SplitConfig("a.tar", stages=[iter])},
        {"val": SplitConfig("a.tar", collate_fn=list)},
        {"sample_transforms": [dict]},
        {"train": None},
        {"device_transforms": {"__weight__": abs, "label": abs}},
    ],
)
def test_a_device_transform_may_be_for_what_the_batch_of_one_split_can_hold(settings):
    assert module(**{"device_transforms": {"x": abs}} | settings).device_transforms
