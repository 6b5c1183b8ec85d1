"""What config/ guarantees, in the names of its tests: one module from any form of settings."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError, UnsafeError

SETTINGS: dict[str, Any] = {
    "train": {"urls": "train-{000..003}.tar", "batch_size": 8, "stages": ["builtins.iter"]},
    "val": {"urls": ["val-0.tar", "val-1.tar"], "sampling": "sequential"},
    "fields": {"image": "jpg;png", "label": "cls"},
    "decode": {"image": "gray"},
    "transforms": {"label": "builtins.float"},
    "batch_size": 16,
    "loader": {"prefetch_factor": 4},
}


class Named(ShardDataModule):
    """A subclass with a setting of its own."""

    def __init__(self, classes: list[str] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.classes = classes


def told(module: ShardDataModule) -> dict[str, Any]:
    """All that a module was told."""
    names = ("fields", "decode", "transforms", "device_transforms", "batch_size", "num_workers")
    others = ("seed", "batch_format", "loader_config", "allow_unsafe")
    return module.splits | {name: getattr(module, name) for name in names + others}


WANTED = ShardDataModule(
    SplitConfig("train-{000..003}.tar", batch_size=8, stages=[iter]),
    SplitConfig(["val-0.tar", "val-1.tar"], sampling="sequential"),
    fields={"image": "jpg;png", "label": "cls"},
    decode={"image": "gray"},
    transforms={"label": float},
    batch_size=16,
    loader=LoaderConfig(prefetch_factor=4),
)


@pytest.fixture(params=["dict", "DictConfig", "path", "str"])
def given(request, tmp_path):
    """Turns settings into each of the forms that a configuration may have."""

    def made(settings):
        if request.param == "dict":
            return settings
        config = OmegaConf.create(settings)
        if request.param == "DictConfig":
            return config
        path = tmp_path / "config.yaml"
        OmegaConf.save(config, path)
        return path if request.param == "path" else str(path)

    return made


def test_the_keys_of_the_signature_make_the_module(given):
    module = ShardDataModule.from_config(given(SETTINGS))
    assert type(module) is ShardDataModule
    assert told(module) == told(WANTED)


def test_a_config_of_lightning_cli_gives_its_section_data(given):
    whole = {
        "seed_everything": 0,
        "trainer": {"max_epochs": 16, "logger": "${nowhere}"},  # not ours: not resolved
        "data": SETTINGS | {"batch_size": "${trainer.max_epochs}"},
    }
    assert told(ShardDataModule.from_config(given(whole))) == told(WANTED)


def test_a_section_may_name_a_subclass(given):
    section = {
        "class_path": f"{__name__}.Named",
        "init_args": SETTINGS | {"classes": ["cat", "dog"]},
    }
    for config in (section, {"data": section, "model": None}):
        module = ShardDataModule.from_config(given(config))
        assert isinstance(module, Named)
        assert module.classes == ["cat", "dog"]
        assert told(module) == told(WANTED)


def test_a_config_is_not_changed_by_being_read():
    config = OmegaConf.create(SETTINGS | {"seed": "${batch_size}"})
    before = OmegaConf.to_yaml(config)
    assert ShardDataModule.from_config(config).seed == 16
    assert OmegaConf.to_yaml(config) == before
    settings = {"train": {"urls": "a.tar"}, "fields": {"label": "cls"}}
    ShardDataModule.from_config(settings)
    assert settings == {"train": {"urls": "a.tar"}, "fields": {"label": "cls"}}


def test_a_dict_in_code_may_hold_callables_and_dataclasses():
    split = SplitConfig("a.tar", transforms={"label": abs})
    settings = {"train": split, "fields": {"label": "cls"}, "transforms": {"label": float}}
    module = ShardDataModule.from_config(settings)
    assert module.splits["train"] == split
    assert module.transforms == {"label": float}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batchsize": 3}, r"accept option 'batchsize'; did you mean 'batch_size'\?$"),
        (
            {"train": {"mix": {"web": {"urls": "a", "samplng": "shuffled"}}}},
            r"^data.train.mix: Option 'samplng' .*; did you mean 'sampling'\?$",
        ),
        ({"train": {"url": "a"}}, r"^data.train: .*Option 'url' .*; did you mean 'urls'\?$"),
        ({"train": 3}, r"^data.train: Not a valid .*SplitConfig. Got value: 3$"),
        ({"pool": "x"}, r"accept option 'pool'; did you mean 'data.loader.pool'\?$"),
        ({"batch_size": "x"}, r"^data.batch_size: Expected a <class 'int'>. Got value: x$"),
        ({"batch_size": 0}, r"^data: batch_size must be a whole number of at least 1, got 0$"),
        ({"val": {"urls": 3}}, r"^data.val.urls: Expected a <class 'str'>. Got value: 3$"),
        ({"val": {"urls": "a", "batch_size": 0}}, r"^data.val: batch_size must be .*, got 0$"),
        ({"test_sets": {"w-b": {"urls": ""}}}, r"^data.test/w-b: urls is empty; give a path"),
        ({"test_sets": {"w-b": 3}}, r"^data.test_sets: Not a valid .*SplitConfig. Got value: 3$"),
        ({"fields": None}, r"^data: the following arguments are required: data.fields$"),
        ({"batch_size": "${sed}"}, r"Interpolation key 'sed' not found, at 'batch_size'$"),
        ({"class_path": "lightning_shards.ShardDataModule"}, r"not \['batch_size', 'decode', "),
        ({"data": [1]}, r"must hold the settings of a data module, got \[1\]$"),
    ],
)
@pytest.mark.parametrize("given", ["DictConfig"], indirect=True)
def test_a_config_that_cannot_work_is_refused_by_key_and_value(given, changes, message):
    with pytest.raises(ConfigError, match=message):
        ShardDataModule.from_config(given(SETTINGS | changes))


def test_a_refusal_keeps_its_kind():
    settings = SETTINGS | {"fields": {"label": "pkl"}, "decode": None}
    with pytest.raises(UnsafeError, match=r"^data: field 'label' would be decoded as 'pickle'"):
        ShardDataModule.from_config(settings)


def test_a_file_that_is_not_there_or_no_yaml_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.yaml"):
        ShardDataModule.from_config(tmp_path / "none.yaml")
    broken, listed = tmp_path / "broken.yaml", tmp_path / "list.yaml"
    broken.write_text("train: {urls: [\n")
    listed.write_text("- 1\n")
    with pytest.raises(ConfigError, match=r"broken.yaml': while parsing"):
        ShardDataModule.from_config(broken)
    with pytest.raises(ConfigError, match=r"list.yaml' must hold the settings of a data module"):
        ShardDataModule.from_config(str(listed))


# --- structured configs ---------------------------------------------------------------------------


def test_a_structured_config_merges_type_checks_and_makes_the_same_split(tmp_path):
    base = OmegaConf.structured(SplitConfig)
    options = OmegaConf.from_dotlist(["batch_size=8"])
    merged = OmegaConf.merge(base, {"urls": "a-{0..3}.tar"}, options)
    assert OmegaConf.to_object(merged) == SplitConfig("a-{0..3}.tar", batch_size=8)
    named = OmegaConf.merge(merged, {"transforms": {"label": "builtins.float"}})
    OmegaConf.save(named, tmp_path / "split.yaml")
    loaded = OmegaConf.merge(base, OmegaConf.load(tmp_path / "split.yaml"))
    split = SplitConfig("a-{0..3}.tar", batch_size=8, transforms={"label": float})
    assert OmegaConf.to_object(loaded) == OmegaConf.to_object(named) == split
    assert OmegaConf.to_object(OmegaConf.structured(LoaderConfig)) == LoaderConfig()
