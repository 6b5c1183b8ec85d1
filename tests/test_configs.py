"""Every experiment in configs/ is read and run by a test, on stand-ins for its shards."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image
from webdataset.writer import ShardWriter

from lightning_shards import SetEpoch, ShardCLI, ShardDataModule

pytestmark = [
    # Lightning 2.6's own use of jsonargparse 4.53
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
    # CSVLogger is good enough here
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed"),
]

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
SAMPLES = {"train": 44, "val": 13}


def image_bytes(rng: np.random.Generator, kind: str) -> bytes:
    """A small picture; no two have the same size."""
    height, width = rng.integers(30, 60, size=2)
    data = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(data, kind)
    return data.getvalue()


def classified(rng: np.random.Generator) -> dict[str, Any]:
    return {"jpg": image_bytes(rng, "JPEG"), "cls": str(rng.integers(10))}


def captioned(rng: np.random.Generator) -> dict[str, Any]:
    meta = json.dumps({"url": "https://example.org/a.jpg", "similarity": float(rng.random())})
    return {"jpg": image_bytes(rng, "JPEG"), "txt": "ein grüner Vogel", "json": meta.encode()}


def tokenised(rng: np.random.Generator) -> dict[str, Any]:
    return {"npy": rng.integers(0, 500, 33).astype(np.uint16)}


def labelled(rng: np.random.Generator) -> dict[str, Any]:
    """The members of all components of the mixture."""
    label = str(rng.integers(10))
    image = {"jpg": image_bytes(rng, "JPEG"), "png": image_bytes(rng, "PNG")}
    return {**image, "cls": label, "class.txt": label}


def pack(folder: Path, sample: Callable[[np.random.Generator], dict[str, Any]]) -> None:
    """`train-*.tar` and `val-*.tar` of the kind of sample that a config reads."""
    folder.mkdir(parents=True)
    for split, count in SAMPLES.items():
        with ShardWriter(str(folder / f"{split}-%03d.tar"), maxcount=11, verbose=0) as shards:
            for number in range(count):
                members = sample(np.random.default_rng((count, number)))
                shards.write({"__key__": f"{number:09d}", **members})


# what makes a run on one process of a CPU, whatever the config says of its machine
SMALL = [
    "--trainer.accelerator=cpu",
    "--trainer.strategy=auto",
    "--trainer.devices=1",
    "--trainer.num_nodes=1",
    "--trainer.precision=32-true",
    "--trainer.fast_dev_run=2",
    "--data.num_workers=0",
    "--data.batch_size=4",
]
# name: (the samples it reads, its splits, what makes its model small)
STAND_INS: dict[str, tuple[Any, list[str], list[str]]] = {
    "imagenet.yaml": (classified, ["train", "val"], ["--model.num_classes=10"]),
    "image_text.yaml": (captioned, ["train"], ["--data.train.dataset_size=20"]),
    "tokens.yaml": (tokenised, ["train", "val"], ["--model.vocabulary=500", "--model.width=32"]),
    "mixture.yaml": (
        labelled,
        ["val"],
        [f"--data.train.mix.{name}.urls=shards/train-*.tar" for name in ("web", "labels", "synth")]
        + ["--data.train.dataset_size=128", "--model.num_classes=10"],
    ),
    "ddp_multinode.yaml": (classified, ["train", "val"], ["--model.num_classes=10"]),
    "elastic.yaml": (classified, ["train", "val"], ["--model.num_classes=10", "--ckpt_path=null"]),
}

DIGITS = ("digits.yaml", "digits_stream.yaml")


@pytest.fixture(autouse=True)
def called_from_the_root(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))  # models of examples/ are named in configs
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # seed_everything sets it, this takes it back
    monkeypatch.setattr(sys, "argv", ["lightning-shards"])


def settings_of(module: ShardDataModule) -> dict[str, Any]:
    """What a module was made of."""
    names = ("splits", "fields", "decode", "transforms", "device_transforms",
             "batch_size", "num_workers", "seed", "loader_config")  # fmt: skip
    return {name: getattr(module, name) for name in names}


def test_every_config_is_run_by_a_test():
    assert sorted([*STAND_INS, *DIGITS]) == CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_the_command_of_a_config_is_in_its_first_line(name):
    first = (ROOT / "configs" / name).read_text().splitlines()[0]
    assert first == f"# lightning-shards fit --config configs/{name}"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_read_and_its_data_section_makes_the_same_module_without_the_cli(
    name, monkeypatch
):
    monkeypatch.setattr(ShardCLI, "_run_subcommand", lambda *_: None)
    config = ROOT / "configs" / name
    cli = ShardCLI(args=["fit", "--config", str(config), "--trainer.accelerator=cpu"])
    assert isinstance(cli.datamodule, ShardDataModule)
    assert SetEpoch in map(type, cli.trainer.callbacks)
    trainer = OmegaConf.load(config)["trainer"]
    assert cli.trainer.world_size == int(trainer["devices"]) * int(trainer.get("num_nodes", 1))
    assert settings_of(ShardDataModule.from_config(config)) == settings_of(cli.datamodule)


@pytest.mark.filterwarnings("ignore:The `srun` command is available")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", STAND_INS)
def test_a_config_trains_and_validates_on_stand_ins_for_its_shards(name, tmp_path, monkeypatch):
    sample, splits, smaller = STAND_INS[name]
    pack(tmp_path / "shards", sample)
    monkeypatch.chdir(tmp_path)
    urls = [f"--data.{split}.urls={tmp_path}/shards/{split}-*.tar" for split in splits]
    options = [*SMALL, *smaller, *urls, f"--data.loader.cache_dir={tmp_path}/cache"]
    cli = ShardCLI(args=["fit", "--config", str(ROOT / "configs" / name), *options])
    assert cli.trainer.fit_loop.epoch_loop.batch_progress.total.completed == 2
    validated = cli.trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.completed
    assert validated == (2 if "val" in splits else 0)
    measured = cli.trainer.callback_metrics
    assert "train_loss" in measured
    assert all(torch.isfinite(value) for value in measured.values())


@pytest.mark.slow
@pytest.mark.ddp
def test_webdatasets_pipeline_trains_on_two_ranks_by_its_command(tmp_path, forked_programs):
    """The indexed reader does so in the quickstart (tests/test_examples.py).

    Lightning starts the second rank, in an interpreter of its own, by the same command.
    """
    for folder in ("configs", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    from examples.quickstart import pack_digits

    pack_digits(tmp_path / "data/digits")
    command = Path(sys.executable).with_name("lightning-shards")
    options = ["fit", "--config", "configs/digits_stream.yaml", "--trainer.max_epochs=1"]
    output, statuses = forked_programs.run([command, *options], tmp_path)
    assert statuses == [0], output
    assert output.count("data throughput: ") == 1
    assert "resampled by the stream reader" in output
    assert list(tmp_path.glob("lightning_logs/version_0/checkpoints/*.ckpt"))
    assert list(tmp_path.glob("lightning_logs/version_0/config.yaml"))
