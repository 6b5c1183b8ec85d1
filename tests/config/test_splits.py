"""Settings that cannot work are refused where they are written, with name, value and remedy."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"urls": ""}, r"urls is empty; give a path, a pattern like"),
        ({"sampling": "random"}, r"sampling must be one of .*'shuffled'.*got 'random'"),
        ({"reader": "wids"}, r"reader must be one of \['auto', 'stream'.*\], got 'wids'"),
        ({"remainder": "keep"}, r"remainder must be one of .*'balanced'\], got 'keep'"),
        ({"on_bad_sample": "substitute"}, r"max_bad=0 .* 'substitute' needs .*, at least 1"),
        ({"max_bad": 3}, r"max_bad=3 does not go with .*='raise': .* 'raise' takes 0"),
        ({"on_bad_sample": "substitute", "max_bad": 0.1}, r"max_bad must be a whole number.*0\.1"),
        ({"batch_size": 0}, r"batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": "8"}, r"batch_size must be a whole number of at least 1, got '8'"),
        ({"shuffle_run": -1}, r"shuffle_run must be a whole number of at least 0, got -1"),
        (
            {"shuffle_strands": 8},
            r"shuffle_strands=8 does not go with sampling=None: .*leave one of them out",
        ),
        (
            {"shuffle_strands": 8, "sampling": "shuffled", "reader": "stream"},
            "reader='stream': it needs",
        ),
        (
            {
                "shuffle_strands": 8,
                "sampling": "shuffled",
                "batch_alike": {"field": "a", "group": 2},
            },
            "shuffle_strands=8 does not go with batch_alike: .*; change that",
        ),
        (
            {"transforms": {"image": "flip"}},
            r"transforms.image is 'flip', which cannot be loaded",
        ),
        ({"stages": [iter, "mix"]}, r"stages\[1\] is 'mix', which cannot be loaded: No mod"),
    ],
)
def test_a_split_that_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SplitConfig(**{"urls": "a.tar"} | settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pool": "dask"}, r"pool must be one of \['processes', .*'ray'\], got 'dask'"),
        (
            {"threads_per_worker": 2, "pool": "threads"},
            r"threads_per_worker=2 goes with pool='processes', not 'threads'; leave it out",
        ),
        ({"prefetch_factor": 0}, r"prefetch_factor must be a whole number of at least 1, got 0"),
        ({"worker_timeout_s": float("inf")}, r"worker_timeout_s must .*at least 0, got inf"),
    ],
)
def test_a_loader_that_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        LoaderConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, r"batch_size must be a whole number of at least 1, got 0"),
        ({"seed": -1}, r"seed must be a whole number of at least 0, got -1"),
        ({"batch_format": "list"}, r"batch_format must be one of \['dict', 'tuple'\], got 'list'"),
        ({"transforms": {"label": 3}}, r"transforms.label must be a callable.*got 3"),
        ({"decode": {"label": "jxl"}}, r"asks for decoder 'jxl', which does not exist"),
        ({"decode": {"image": "rgb"}}, r"decode names \['image'\]"),
        ({"fields": {}}, r"fields is empty"),
        (
            {"device_transforms": {"lable": abs, "label": abs}},
            r"device_transforms names \['lable'\], and batches have .*'label'.*; name an entry",
        ),
    ],
)
def test_a_module_that_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ShardDataModule(SplitConfig("a.tar"), **{"fields": {"label": "cls"}} | settings)


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
    given = {"train": "a.tar", "fields": {"label": "cls"}, "device_transforms": {"x": abs}}
    assert ShardDataModule(**given | settings).device_transforms


def test_no_file_is_looked_for_before_it_is_needed():
    ShardDataModule(SplitConfig("/nowhere/{0..3}.tar"), fields={"label": "cls"})


@pytest.mark.parametrize(
    ("split", "same"),
    [
        ("a.tar", SplitConfig("a.tar")),
        (Path("a.tar"), SplitConfig("a.tar")),
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
    ("split", "message"),
    [
        ({"url": "a.tar"}, r"^Group 'val' does not accept option 'url'; did you mean 'urls'\?$"),
        ({"urls": "a.tar", "batch_size": "x"}, r"^val.batch_size: .*<class 'int'> Given value: x$"),
        ({1, 2}, r"^val must be a SplitConfig or a dict of its settings; .*, got set$"),
        ([], r"^urls is empty; give a path"),
    ],
)
def test_what_is_no_split_is_refused(split, message):
    with pytest.raises(ConfigError, match=message):
        ShardDataModule("t.tar", val=split, fields={"label": "cls"})
