"""Links from data to model, subclasses, the environment, interpolation, saved configurations."""

from typing import Any

import pytest
import yaml
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_shards import ShardCLI, ShardDataModule, SplitConfig


@pytest.fixture
def printed(tmp_path, config, capsys):
    """What `fit --print_config` prints of the configuration with these options and data."""

    def made(*options, settings=None, **data):
        trainer = config["trainer"] | {"max_epochs": 7}
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({"trainer": trainer, "data": config["data"] | data}))
        args = ["fit", "--config", str(path), *options, "--print_config"]
        with pytest.raises(SystemExit) as ended:
            ShardCLI(BoringModel, args=args, **(settings or {}))
        assert not ended.value.code
        return yaml.safe_load(capsys.readouterr().out)

    return made


class Net(BoringModel):
    """A model that wants to know something of its data."""

    def __init__(self, batch_size: int = 1, num_classes: int = 0) -> None:
        super().__init__()
        self.batch_size, self.num_classes = batch_size, num_classes


class NamedClasses(ShardDataModule):
    """A data module that knows something, once it is made."""

    def __init__(self, classes: list[str] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.num_classes = len(classes or [])


class Linked(ShardCLI):
    """Model and data are one class each."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.batch_size", "model.batch_size")
        parser.link_arguments("data.num_classes", "model.num_classes", apply_on="instantiate")


class LinkedModelsAndData(ShardCLI):
    """Both are any of several."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.init_args.batch_size", "model.init_args.batch_size")
        parser.link_arguments(
            "data.num_classes", "model.init_args.num_classes", apply_on="instantiate"
        )


ONE_CLASS = {"model_class": Net, "datamodule_class": NamedClasses}


@pytest.mark.parametrize("cli", [Linked, LinkedModelsAndData])
def test_a_setting_and_an_attribute_of_the_data_reach_the_model(cli, make_cli, config):
    options, data, settings = ["--data.classes=[cat, dog]"], config["data"], ONE_CLASS
    if cli is LinkedModelsAndData:
        settings = ONE_CLASS | {"subclass_mode_model": True, "subclass_mode_data": True}
        options.append(f"--model={__name__}.Net")
        data = {"class_path": f"{__name__}.NamedClasses", "init_args": data}
    made = make_cli("--data.batch_size=16", *options, cli=cli, settings=settings, data=data)
    assert (made.datamodule.batch_size, made.model.batch_size) == (16, 16)
    assert (made.datamodule.num_classes, made.model.num_classes) == (2, 2)


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


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data.batchsize=3", "Option 'batchsize' is not accepted; did you mean 'batch_size'?"),
        ("--data.train.batch_size=x", "batch_size: - Expected a <class 'int'> Given value: x"),
        ("--data.train.batch_size=0", "data.train: batch_size must be a whole number of at least"),
    ],
)
def test_subclass_mode_refuses_in_one_line_too(option, message, refused, config):
    data = {"class_path": f"{__name__}.NamedClasses", "init_args": config["data"]}
    told = refused(option, settings={"subclass_mode_data": True}, data=data)
    assert told.startswith("data")
    assert message in told
    assert "\n" not in told


def test_the_environment_is_read_where_it_is_asked_for(make_cli, monkeypatch):
    monkeypatch.setenv("PL_DATA__BATCH_SIZE", "5")
    monkeypatch.setenv("PL_DATA__TRAIN__URLS", "env-{0..3}.tar")
    assert make_cli().datamodule.batch_size == 32
    monkeypatch.setenv("PL_DATA__TRAIN", "{urls: env.tar, batch_size: 3}")
    settings = {"parser_kwargs": {"default_env": True}}
    made = make_cli(settings=settings).datamodule
    assert made.batch_size == 5
    assert make_cli("--data.batch_size=6", settings=settings).datamodule.batch_size == 6
    monkeypatch.setenv("JSONARGPARSE_DEFAULT_ENV", "true")
    assert make_cli().datamodule.batch_size == 5


def test_a_yaml_and_its_interpolations_are_one_file(make_cli, config, monkeypatch):
    monkeypatch.setenv("SHARDS", "/data")
    data = config["data"] | {"batch_size": "${trainer.max_epochs}", "seed": "${data.batch_size}"}
    data["train"] = {"urls": "${oc.env:SHARDS}/train-{000..003}.tar", "batch_size": "${data.seed}"}
    made = make_cli(data=data, trainer=config["trainer"] | {"max_epochs": 7}).datamodule
    assert (made.batch_size, made.seed) == (7, 7)
    assert made.splits["train"] == SplitConfig("/data/train-{000..003}.tar", batch_size=7)


@pytest.mark.parametrize(
    ("size", "options", "wanted"),
    [
        ("${trainer.max_epochs}", [], 7),
        ("${..trainer.max_epochs}", [], 7),
        ("${ trainer.max_epochs }", ["--trainer.max_epochs=9"], 9),
        ("${oc.select:nowhere,${trainer.max_epochs}}", [], 7),
        ("${data.val_sets.by-hand.batch_size}", [], 3),
        (1, ["--data.batch_size=${data.loader.prefetch_factor}"], 4),
    ],
)
def test_a_command_takes_the_interpolations_of_a_file_as_they_are(size, options, wanted, printed):
    """jsonargparse would look for them beside the settings of `fit`."""
    sets = {"by-hand": {"urls": "${data.train.urls}", "batch_size": 3}, "web": "${data.train}"}
    written = printed(*options, batch_size=size, val=None, val_sets=sets)["data"]
    assert written["batch_size"] == wanted
    made = ShardDataModule.from_config(written).splits
    assert made["val/web"] == made["train"]
    assert made["val/by-hand"] == SplitConfig("train-{000..003}.tar", batch_size=3)


def test_interpolation_can_be_switched_off_for_a_command(printed):
    settings = {"parser_kwargs": {"parser_mode": "yaml"}}
    told = printed(settings=settings, val="${trainer.max_epochs}.tar")
    assert told["data"]["val"]["urls"] == "${trainer.max_epochs}.tar"


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


@pytest.mark.parametrize("linked", [True, False])
def test_a_config_saved_with_links_or_in_subclass_mode_makes_the_same_module(
    linked, make_cli, config, tmp_path
):
    """Lightning saves what `--print_config` prints; what is linked is not in it."""
    settings: dict[str, Any] = ONE_CLASS
    if not linked:
        data = {"class_path": f"{__name__}.NamedClasses", "init_args": config["data"]}
        config["data"], settings = data, {"model_class": Net, "subclass_mode_data": True}
    cli = Linked if linked else ShardCLI
    first = make_cli("--data.classes=[cat]", "--data.seed=3", cli=cli, settings=settings)
    saved = tmp_path / "saved.yaml"
    first.parser.save(first.config, str(saved), skip_none=False, overwrite=True)
    again = cli(args=["--config", str(saved)], run=False, **settings)
    for module in (again.datamodule, NamedClasses.from_config(saved)):
        assert type(module) is NamedClasses
        assert module.splits == first.datamodule.splits
        assert (module.num_classes, module.seed) == (1, 3)
    assert again.model.num_classes == (1 if linked else 0)
