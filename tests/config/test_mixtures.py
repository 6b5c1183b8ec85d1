"""The settings of a mixture: read from every form of a configuration, and refused where wrong."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from lightning_shards import ComponentConfig, ShardDataModule, SplitConfig, WeightChangeConfig
from lightning_shards.config.module import DataConfig
from lightning_shards.errors import ConfigError

MIX: dict[str, Any] = {
    "web": {"urls": "web-{0..3}.tar", "weight": 3},
    "labels": {"urls": ["labels.tar"], "weight": 0.5, "sampling": "shuffled"},
}
TRAIN: dict[str, Any] = {
    "mix": MIX,
    "round": 64,
    "dataset_size": 640,
    "schedule": [{"epoch": 5, "weights": {"web": 1, "labels": 2.5}}],
}
WANTED = SplitConfig(
    mix={
        "web": ComponentConfig("web-{0..3}.tar", weight=3),
        "labels": ComponentConfig(["labels.tar"], weight=0.5, sampling="shuffled"),
    },
    round=64,
    dataset_size=640,
    schedule=[WeightChangeConfig({"web": 1, "labels": 2.5}, epoch=5)],
)


@pytest.mark.parametrize("form", [dict, OmegaConf.create])
def test_a_mix_is_read_from_a_configuration_and_may_be_dicts_of_settings_in_code(form):
    config = form({"train": TRAIN, "fields": {"label": "cls"}})
    assert ShardDataModule.from_config(config).splits["train"] == SplitConfig(**TRAIN) == WANTED
    assert isinstance(TRAIN["mix"]["web"], dict)  # what the user gave is not written into


def double(value: int) -> int:
    return 2 * value


def test_a_component_takes_what_it_leaves_out_from_its_split_and_then_from_the_module():
    own = {"sampling": "sequential", "fields": {"x": "a"}, "decode": {"x": "raw"}}
    own |= {"transforms": {}, "stages": [iter], "shuffle_run": 1, "shuffle_width": 9}
    mix = {
        "own": {"urls": "a.tar", "weight": 1, **own},
        "bare": {"urls": "b.tar", "weight": 1},
    }
    split = {"mix": mix, "dataset_size": 8, "decode": {"x": "int"}, "shuffle_run": 5}
    data = DataConfig(split, fields={"x": "cls"}, transforms={"x": double}, batch_size=4)
    parts = data.split("train").component_splits()
    assert {name: getattr(parts["own"], name) for name in own} == own
    assert {name: getattr(parts["bare"], name) for name in [*own, "batch_size"]} == {
        "sampling": "resampled",
        "fields": {"x": "cls"},
        "decode": {"x": "int"},
        "transforms": {"x": double},
        "stages": [],
        "shuffle_run": 5,
        "shuffle_width": 2048,
        "batch_size": 4,
    }


def test_a_component_that_has_no_such_field_says_so_of_the_mappings_of_its_split():
    own = {"urls": "a.tar", "weight": 1, "fields": {"y": "txt"}}
    split = {"mix": {"own": own}, "dataset_size": 8, "transforms": {"x": double}}
    with pytest.raises(ConfigError, match=r"^component 'own': transforms names \['x'\], and the "):
        DataConfig(split, fields={"x": "cls"})
    split["mix"] = {"own": own | {"transforms": {"y": double}, "join": {}}}
    data = DataConfig(split | {"join": {"ink": "i.parquet"}}, fields={"x": "cls"})
    (part,) = data.split("train").component_splits().values()
    assert (part.transforms, part.join) == ({"y": double}, {})


HALF = {"hash_of": "key", "of": 2, "parts": [0]}


@pytest.mark.parametrize("name", ["keep", "exclude"])
def test_a_filter_of_a_split_is_not_replaced_by_that_of_a_component(name):
    mix = {"web": MIX["web"], "labels": MIX["labels"] | {name: HALF}}
    wanted = f"^component 'labels': it has {name}, and so has its split, .* take {name} out of the"
    with pytest.raises(ConfigError, match=wanted):
        SplitConfig(mix=mix, dataset_size=8, **{name: HALF})
    (other,) = {"keep", "exclude"} - {name}
    split = SplitConfig(mix=mix, dataset_size=8, **{other: HALF})
    web, labels = split.component_splits().values()
    assert (getattr(web, name), getattr(web, other)) == (None, HALF)
    assert (getattr(labels, name), getattr(labels, other)) == (HALF, HALF)


@pytest.mark.parametrize("name", ["items", "class_path", "mix"])
def test_a_component_may_have_any_identifier_for_its_name(name):
    config = {"train": TRAIN | {"mix": {name: MIX["web"]}, "schedule": []}}
    train = ShardDataModule.from_config(config | {"fields": {"label": "cls"}}).splits["train"]
    assert train is not None
    assert train.mix == {name: ComponentConfig("web-{0..3}.tar", weight=3)}


def with_web(**settings: Any) -> dict[str, Any]:
    return TRAIN | {"mix": MIX | {"web": {"urls": "a.tar", "weight": 1} | settings}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (TRAIN | {"urls": "a.tar"}, "^a split has either urls or mix, got both; leave one of them"),
        ({"mix": {}}, "^urls is empty; give a path"),
        ({"mix": {"web": 3}}, "^mix.web must be a ComponentConfig or a dict of .*got int$"),
        ({"mix": {"web": {"url": "a"}}}, "^Group 'mix.web' does not accept option 'url'"),
        (with_web(urls=[]), "^component 'web': urls is empty; give a path"),
        (with_web(shuffle_run=-1), "^mix.web.shuffle_run must be .* least 0, got -1$"),
        (with_web(stages=["mix"]), r"^component 'web': stages\[0\] is 'mix', which cannot be"),
        ({"schedule": [{"epochs": 1}]}, r"^Group 'schedule\[0\]' does not accept option 'epochs'"),
        ({"schedule": [3]}, r"^schedule\[0\] must be a WeightChange or a dict .* got int$"),
        (
            {"urls": "a.tar", "unit": 2},
            "^unit=2 is a setting of a mix, and this split has urls; le",
        ),
        ({"urls": "a.tar", "schedule": TRAIN["schedule"]}, r"^schedule=\[.* is a setting of a mix"),
    ],
)
def test_a_mix_that_cannot_work_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SplitConfig(**settings)


def test_only_training_takes_a_mix():
    message = "^val takes no mix, .*; for each sample once give the urls of all components"
    with pytest.raises(ConfigError, match=message):
        DataConfig(val=TRAIN, fields={"label": "cls"})


def other_fields(**settings: Any) -> DataConfig:
    labels = MIX["labels"] | {"fields": {"label": "cls", "mask": "png"}}
    split = TRAIN | {"mix": MIX | {"labels": labels}} | settings.pop("split", {})
    return DataConfig(split, fields={"label": "cls"}, **{"batch_size": 4} | settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"split": {"unit": 6}}, {"split": {"unit": 8}, "batch_format": "tuple"}],
)
def test_fields_of_other_names_are_refused_where_a_batch_could_hold_both(settings):
    message = "^component 'labels' has the field 'mask', and component 'web' has not; give all"
    with pytest.raises(ConfigError, match=message):
        other_fields(**settings)


def test_whole_batches_of_one_component_may_have_fields_of_their_own():
    assert other_fields(split={"unit": 8}).train is not None


def test_joined_fields_of_batches_are_those_of_all_components():
    own: list[dict[str, str] | None] = [{"more": "c.parquet", "text": "d.parquet"}, None]
    mix = {f"c{n}": ComponentConfig("a.tar", weight=1, join=join) for n, join in enumerate(own)}
    join = {"text": "a.parquet", "score": "b.parquet"}
    split = SplitConfig(mix=mix, round=4, dataset_size=64, join=join)
    assert split.batch_names({"x": "cls"}) == ["x", "text"]
