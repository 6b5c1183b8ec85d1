"""The command line: what it takes, what it refuses, and what it adds to the trainer."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_shards import (
    DataThroughputMonitor,
    ExactResume,
    LoaderConfig,
    SetEpoch,
    ShardCLI,
    ShardDataModule,
    SplitConfig,
)
from lightning_shards.__main__ import main
from lightning_shards.errors import ConfigError

pytestmark = [
    # Lightning 2.6's own use of jsonargparse 4.53
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
    # CSVLogger is good enough here
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed"),
]

OURS = (SetEpoch, ExactResume, DataThroughputMonitor)
CONFIG: dict[str, Any] = {
    "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False},
    "data": {
        "train": {"urls": "train-{000..003}.tar", "batch_size": 8},
        "val": {"urls": ["val-0.tar", "val-1.tar"], "sampling": "sequential"},
        "fields": {"image": "jpg;png", "label": "cls"},
        "decode": {"image": "gray"},
        "num_workers": 0,
        "loader": {"prefetch": 4},
    },
}


@pytest.fixture(autouse=True)
def called_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pytest's own options, without a seed for what comes after, and with our path."""
    monkeypatch.setattr(sys, "argv", ["lightning-shards"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")


@pytest.fixture
def make_cli(tmp_path: Path) -> Callable[..., ShardCLI]:
    """Reads CONFIG, changed, and the options; runs nothing."""

    def made(*options: str, **changes: Any) -> ShardCLI:
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(CONFIG | changes))
        return ShardCLI(BoringModel, args=["--config", str(path), *options], run=False)

    return made


def kinds(cli: ShardCLI) -> list[type]:
    return [type(callback) for callback in cli.trainer.callbacks]


# --- what arrives ---------------------------------------------------------------------------------


def test_a_yaml_becomes_a_data_module_of_frozen_values(make_cli: Callable[..., ShardCLI]) -> None:
    data = make_cli().datamodule
    assert isinstance(data, ShardDataModule)
    assert data.splits["train"] == SplitConfig("train-{000..003}.tar", batch_size=8)
    assert data.splits["val"] == SplitConfig(["val-0.tar", "val-1.tar"], sampling="sequential")
    assert data.splits["test"] is None
    assert data.loader_config == LoaderConfig(prefetch=4)
    assert data.fields == {"image": "jpg;png", "label": "cls"}


def test_options_win_over_the_yaml(make_cli: Callable[..., ShardCLI]) -> None:
    data = make_cli(
        "--data.train.urls=other-0.tar::other-1.tar",
        "--data.train.batch_size=3",
        "--data.loader.prefetch=1",
        "--data.seed=7",
        "--data.val=null",
    ).datamodule
    assert data.splits["train"] == SplitConfig("other-0.tar::other-1.tar", batch_size=3)
    assert data.splits["val"] is None
    assert (data.loader_config, data.seed) == (LoaderConfig(prefetch=1), 7)


class Times:
    """A transform with a setting."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, value: int) -> int:
        return value * self.factor


def test_transforms_and_stages_are_made_from_class_path_and_init_args(
    make_cli: Callable[..., ShardCLI],
) -> None:
    doubled = {"class_path": f"{__name__}.Times", "init_args": {"factor": 2}}
    data = CONFIG["data"] | {
        "transforms": {"label": doubled},
        "device_transforms": {"image": doubled},
    }
    data["train"] = data["train"] | {"stages": [doubled], "transforms": {"label": doubled}}
    module = make_cli(data=data).datamodule
    train = module.splits["train"]
    for made in (
        module.transforms["label"],
        module.device_transforms["image"],
        train.stages[0],
        train.transforms["label"],
    ):
        assert made(21) == 42


def test_a_setting_that_cannot_work_is_an_error_with_the_remedy(
    make_cli: Callable[..., ShardCLI],
) -> None:
    with pytest.raises(ConfigError, match="batch_size must be a whole number of at least 1, got 0"):
        make_cli("--data.batch_size=0")


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    ["--data.batch=3", "--data.train.batch=3", "--data.loader.pre=1", "--trainer.max_epoch=3"],
)
def test_an_abbreviated_or_misspelt_option_is_refused(
    option: str, make_cli: Callable[..., ShardCLI], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        make_cli(option)
    assert ended.value.code == 2
    assert option.partition("=")[0].rpartition(".")[2] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "key"),
    [("data", "batchsize"), ("train", "url"), ("loader", "prefech"), ("trainer", "max_epoch")],
)
def test_a_misspelt_key_in_the_yaml_is_refused(
    where: str, key: str, make_cli: Callable[..., ShardCLI], capsys: pytest.CaptureFixture[str]
) -> None:
    data, trainer = dict(CONFIG["data"]), dict(CONFIG["trainer"])
    places = {"data": data, "trainer": trainer}
    for inner in ("train", "loader"):
        places[inner] = data[inner] = dict(data[inner])
    places[where][key] = 1
    with pytest.raises(SystemExit) as ended:
        make_cli(data=data, trainer=trainer)
    assert ended.value.code == 2
    assert key in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--data.train.sampling=often", "--data.batch_size=many"])
def test_a_value_of_another_type_is_refused(
    option: str, make_cli: Callable[..., ShardCLI], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        make_cli(option)
    assert ended.value.code == 2
    assert option.partition("=")[2] in capsys.readouterr().err


# --- what is added --------------------------------------------------------------------------------


def test_our_callbacks_are_added_once(make_cli: Callable[..., ShardCLI]) -> None:
    found = kinds(make_cli())
    assert [found.count(kind) for kind in OURS] == [1, 1, 1]


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("as_list", [True, False])
def test_a_callback_of_ours_that_the_yaml_brings_is_not_added_again(
    as_list: bool, ours: type, make_cli: Callable[..., ShardCLI]
) -> None:
    listed: Any = {"class_path": f"lightning_shards.{ours.__name__}"}
    if as_list:
        checkpoint = {"class_path": "ModelCheckpoint", "init_args": {"save_top_k": -1}}
        listed = [listed, checkpoint]
    cli = make_cli(trainer=CONFIG["trainer"] | {"callbacks": listed})
    assert [kinds(cli).count(kind) for kind in OURS] == [1, 1, 1]
    saved = [each for each in cli.trainer.callbacks if isinstance(each, ModelCheckpoint)]
    assert [each.save_top_k for each in saved] == [-1 if as_list else 1]


def test_callbacks_of_the_callers_own_defaults_stay(tmp_path: Path) -> None:
    class Own(pl.Callback):
        pass

    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    cli = ShardCLI(
        BoringModel,
        args=["--config", str(path)],
        run=False,
        trainer_defaults={"callbacks": [Own()]},
    )
    assert kinds(cli).count(Own) == kinds(cli).count(SetEpoch) == 1


# --- help, and a printed configuration -----------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], run: Callable[[], object]) -> str:
    with pytest.raises(SystemExit) as ended:
        run()
    assert not ended.value.code
    return capsys.readouterr().out


def test_a_printed_config_reads_as_itself(
    make_cli: Callable[..., ShardCLI], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = printed(capsys, lambda: make_cli("--data.seed=3", "--print_config"))
    again = tmp_path / "again.yaml"
    again.write_text(first)
    args = ["--config", str(again)]
    assert (
        printed(capsys, lambda: ShardCLI(BoringModel, args=[*args, "--print_config"], run=False))
        == first
    )
    cli = ShardCLI(BoringModel, args=args, run=False)
    assert cli.datamodule.splits == make_cli().datamodule.splits
    assert cli.datamodule.seed == 3


def test_help_of_a_split_shows_a_sentence_under_each_field(
    make_cli: Callable[..., ShardCLI], capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(printed(capsys, lambda: make_cli("--data.train.help")).split())
    assert "Shards: paths or URLs with braces, local wildcards" in text
    for name in SplitConfig.__dataclass_fields__:
        assert f"--data.train.{name} " in text


def test_help_shows_a_sentence_under_each_setting_of_the_module_and_the_loader(
    make_cli: Callable[..., ShardCLI], capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(printed(capsys, lambda: make_cli("--help")).split())
    assert "Samples per rank and step" in text
    assert "Batches that each worker keeps ready" in text
    assert "Names of what can run code and is wanted all the same" in text


def test_the_command_lists_fit_validate_test_and_predict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lightning-shards", "--help"])
    text = printed(capsys, main)
    for subcommand in ("fit", "validate", "test", "predict"):
        assert f"\n    {subcommand} " in text


def test_a_misspelt_option_of_a_subcommand_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["fit", "--model=BoringModel", "--data.fields={}", "--data.batch=3"]
    monkeypatch.setattr(sys, "argv", ["lightning-shards", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--data.batch" in capsys.readouterr().err


# --- a whole command, in this process ------------------------------------------------------------

MODEL = '''
import torch
import lightning.pytorch as pl

class Net(pl.LightningModule):
    """Named in the configuration as net.Net, found in the folder of the command."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 10)

    def step(self, batch, name):
        logits = self.layer(batch["image"].flatten(1).float())
        loss = torch.nn.functional.cross_entropy(logits, batch["label"])
        self.log(name, loss)
        return loss

    def training_step(self, batch):
        return self.step(batch, "train_loss")

    def validation_step(self, batch):
        self.step(batch, "val_loss")

    def test_step(self, batch):
        self.step(batch, "test_loss")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
'''


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The dirpath has changed from")
def test_fit_and_test_run_with_a_model_of_the_current_folder_and_a_saved_config_resumes(
    tmp_path: Path,
    pack_shards: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pack_shards([5, 7], "train")
    pack_shards([3], "val")
    (tmp_path / "net.py").write_text(MODEL)
    data = CONFIG["data"] | {
        split: {"urls": f"shards/{name}-*.tar"}
        for split, name in {"train": "train", "val": "val", "test": "val"}.items()
    }
    data |= {"batch_size": 2, "loader": {"cache_dir": "cache"}}
    trainer = CONFIG["trainer"] | {"log_every_n_steps": 2, "enable_progress_bar": False}
    del trainer["logger"]
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"model": {"class_path": "net.Net"}, "data": data, "trainer": trainer})
    )
    monkeypatch.chdir(tmp_path)

    def run(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["lightning-shards", *options])
        main()
        return capsys.readouterr().out

    run("fit", "--config", "config.yaml")
    saved = tmp_path / "lightning_logs/version_0"
    [checkpoint] = (saved / "checkpoints").glob("*.ckpt")
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 6
    assert "data/wait_fraction" in (saved / "metrics.csv").read_text()
    assert "test_loss" in run("test", "--config", "config.yaml", "--ckpt_path", str(checkpoint))
    options = ["--config", str(saved / "config.yaml"), "--trainer.max_epochs=2"]
    run("fit", *options, "--ckpt_path", str(checkpoint))
    [resumed] = tmp_path.glob("lightning_logs/version_2/checkpoints/*.ckpt")
    assert torch.load(resumed, weights_only=True)["global_step"] == 12
    assert os.environ["PL_GLOBAL_SEED"] == "0"
