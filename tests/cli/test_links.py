"""Links from data to model, subclasses, the environment, interpolation, saved configurations."""

from typing import Any

import pytest
import yaml
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_shards import ShardCLI, ShardDataModule, SplitConfig


class Net(BoringModel):
    """A model that wants to know something of its data."""

    def __init__(self, num_classes: int = 0) -> None:
        super().__init__()
        self.num_classes = num_classes


class NamedClasses(ShardDataModule):
    """A data module that knows something, once it is made."""

    def __init__(self, classes: list[str] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.num_classes = len(classes or [])


class Linked(ShardCLI):
    """Model and data are one class each."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.num_classes", "model.num_classes", apply_on="instantiate")


@pytest.mark.parametrize("is_file", [False, True])
def test_the_classes_of_the_data_reach_the_model(is_file, make_cli, config, tmp_path):
    data = config["data"]
    if is_file:
        (tmp_path / "classes.json").write_text('{"cat": 0, "dog": 2, "fox": 1}')
        data["train"] = str(tmp_path / "{000..003}.tar")
    else:
        data |= {"classes": {"label": ["cat", "fox", "dog"]}}
        data["decode"]["label"] = "class"
    made = make_cli(cli=Linked, settings={"model_class": Net}, data=data)
    assert made.datamodule.class_names == ["cat", "fox", "dog"]
    assert made.model.num_classes == 3


def test_unknown_classes_are_an_error_of_one_line(refused):
    told = refused(cli=Linked, settings={"model_class": Net})
    assert "the classes of train are unknown: it has no `classes`" in told


@pytest.mark.parametrize("flat", [True, False])
def test_subclass_mode_takes_any_data_module_and_the_flat_form(flat, make_cli, config):
    data: Any = config["data"]
    if not flat:
        data = {"class_path": f"{__name__}.NamedClasses", "init_args": data | {"classes": ["a"]}}
    made = make_cli("--data.train.batch_size=2", settings={"subclass_mode_data": True}, data=data)
    assert type(made.datamodule) is (ShardDataModule if flat else NamedClasses)
    assert made.datamodule.splits["train"] == SplitConfig("train-{000..003}.tar", batch_size=2)


@pytest.mark.usefixtures("transforms")
def test_a_saved_config_says_what_was_named_and_makes_the_same_module(make_cli, config, tmp_path):
    named = {"class_path": "my_transforms.Times", "init_args": {"factor": 4}}
    data = config["data"] | {"batch_size": "${trainer.max_epochs}"}
    data["transforms"] = {"image": named, "label": "my_transforms.double"}
    first = make_cli(data=data)
    saved = tmp_path / "saved.yaml"
    first.parser.save(first.config, str(saved), skip_none=False, overwrite=True)
    written = yaml.safe_load(saved.read_text())["data"]
    assert written["transforms"] == {"image": named, "label": "my_transforms.double"}
    again = ShardCLI(BoringModel, args=["--config", str(saved)], run=False).datamodule
    for module in (again, ShardDataModule.from_config(saved)):
        assert module.splits == first.datamodule.splits
        assert module.batch_size == 1
        assert module.transforms["label"] is first.datamodule.transforms["label"]
        assert vars(module.transforms["image"]) == {"factor": 4}


@pytest.mark.parametrize(
    ("size", "options", "wanted"),
    [
        ("${trainer.max_epochs}", [], 7),
        ("${trainer.max_epochs}", ["--trainer.max_epochs=9"], 9),
        ("${..trainer.max_epochs}", [], 7),
        ("${oc.select:nowhere,${trainer.max_epochs}}", [], 7),
        ("${oc.decode:${oc.env:PL_GLOBAL_SEED}}5", [], 5),
        (1, ["--data.batch_size=${.loader.prefetch_factor}"], 4),
    ],
)
def test_a_command_takes_the_interpolations_of_a_file_as_they_are(
    size, options, wanted, config, tmp_path, capsys
):
    """jsonargparse would look for them beside the settings of `fit`."""
    path = tmp_path / "config.yaml"
    trainer = config["trainer"] | {"max_epochs": 7}
    path.write_text(
        yaml.safe_dump({"trainer": trainer, "data": config["data"] | {"batch_size": size}})
    )
    with pytest.raises(SystemExit):
        ShardCLI(BoringModel, args=["fit", "--config", str(path), *options, "--print_config"])
    assert yaml.safe_load(capsys.readouterr().out)["data"]["batch_size"] == wanted
