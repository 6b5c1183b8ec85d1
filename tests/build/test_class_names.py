"""The names of the classes, which a model asks for before anything is set up."""

import json

import pytest

from lightning_shards import ShardDataModule
from lightning_shards.errors import ConfigError


@pytest.fixture
def urls_with(tmp_path):
    """Shards that do not exist yet, in a folder that has these classes."""

    def made(folder, classes):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "classes.json").write_text(json.dumps(classes))
        return str(tmp_path / folder / "{0..3}.tar")

    return made


def of_class(train, *names, **classes):
    fields = dict.fromkeys(names or ["label"], "cls")
    return ShardDataModule(
        train, fields=fields, decode=dict.fromkeys(fields, "class"), classes=classes
    )


def test_numbers_without_a_class_have_no_name(urls_with):
    data = ShardDataModule(val=urls_with("a", {"x": 3, "y": 1}), fields={"label": "cls"})
    assert (data.class_names, data.num_classes) == (["", "y", "", "x"], 4)


def test_what_the_configuration_says_wins(urls_with):
    data = of_class(urls_with("a", ["x"]), label={"z": 1, "y": 0})
    assert (data.class_names, data.num_classes) == (["y", "z"], 2)


def test_the_components_of_a_mix_must_have_the_same(urls_with):
    mix = {
        name: {"urls": urls_with(name, classes), "weight": 1}
        for name, classes in {"a": ["x", "y"], "b": {"y": 1, "x": 0}, "c": ["y", "x"]}.items()
    }
    alike = {"mix": {name: mix[name] for name in "ab"}, "dataset_size": 8}
    assert ShardDataModule(alike, fields={"label": "cls"}).class_names == ["x", "y"]
    with pytest.raises(ConfigError, match=r"b/classes.json and .*c/classes.json have different"):
        _ = ShardDataModule({**alike, "mix": mix}, fields={"label": "cls"}).num_classes


def test_fields_with_other_classes_have_no_one_number(urls_with):
    data = of_class(urls_with("a", ["x"]), "label", "kind", label=["x", "y"])
    with pytest.raises(ConfigError, match=r"have different .* 'y' is 1 and absent; .* tell the mo"):
        _ = data.num_classes
