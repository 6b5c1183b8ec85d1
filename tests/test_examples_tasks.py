"""The examples for images, image-text pairs, tokens and boxes, each on tiny data of its kind."""

import csv
import io
import math
import runpy
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lightning_shards import ShardWriter

pytestmark = [
    # Lightning 2.6's own use of jsonargparse 4.53
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
    # CSVLogger is good enough here
    pytest.mark.filterwarnings("ignore:Starting from v1.9.0, `tensorboardX` has been removed"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]

ROOT = Path(__file__).parents[1]
# what makes a run on one process of a CPU, and all that it writes lie in one folder
SMALL = {
    "trainer.accelerator": "cpu",
    "trainer.strategy": "auto",
    "trainer.devices": 1,
    "trainer.precision": "32-true",
    "trainer.enable_progress_bar": "false",
    "trainer.num_sanity_val_steps": 0,
    "trainer.log_every_n_steps": 1,
    "data.num_workers": 0,
    "data.batch_size": 4,
}


@pytest.fixture(autouse=True)
def called_from_the_root(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))  # main() puts it there too; this takes both back
    monkeypatch.setenv("HOME", str(tmp_path))  # caches lie there
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # seed_everything sets it, this takes it back


@pytest.fixture
def run_example(monkeypatch):
    """Does what `python examples/NAME.py ARGUMENTS` does, in this process."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"examples/{name}.py", *map(str, arguments)])
        runpy.run_path(f"examples/{name}.py", run_name="__main__")

    return run


@pytest.fixture
def fit(run_example):
    """Does the command in an example's first line, small: the last value of each of its metrics."""

    def fitted(name, folder, **settings):
        given = SMALL | {"trainer.default_root_dir": folder, "data.loader.cache_dir": folder}
        given |= {"trainer.logger": "CSVLogger", "trainer.logger.save_dir": folder}
        splits = [split for split in ("train", "val") if (folder / split).exists()]
        given |= {f"data.{split}.urls": folder / split / "*.tar" for split in splits}
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        options = [f"--{key}={value}" for key, value in given.items()]
        run_example(name, "fit", "--config", f"configs/{name}.yaml", *options)
        [path] = folder.rglob("metrics.csv")
        with path.open() as file:
            rows = [row.items() for row in csv.DictReader(file)]
        return {name: float(value) for row in rows for name, value in row
                if value and not name.startswith("data/")}  # fmt: skip

    return fitted


def write_pairs(folder, count, suffix, text_of):
    """JPEGs of any size, each with a text, in shards of seven."""
    rng = np.random.default_rng(count)
    with ShardWriter(folder, max_samples=7) as shards:
        for number in range(count):
            height, width = rng.integers(20, 50, size=2)
            photo = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
            photo.save(data := io.BytesIO(), "JPEG")
            sample = {"__key__": f"{number:09d}", "jpg": data.getvalue(), "json": {"n": number}}
            shards.write(sample | {suffix: text_of(number)})


def test_imagenet_counts_each_validation_sample_once(fit, tmp_path):
    for split, count in (("train", 22), ("val", 13)):
        write_pairs(tmp_path / split, count, "cls", lambda number: str(number % 5))
    metrics = fit("imagenet", tmp_path, data__val__remainder="pad", trainer__max_epochs=2,
                  model__num_classes=5, model__channels=8)  # fmt: skip
    assert math.isfinite(metrics["train_loss"])
    right = 13 * metrics["val_accuracy"]
    assert right == pytest.approx(round(right), abs=1e-5)
    assert metrics["step"] == 2 * 5  # two of 22 samples are dropped
    assert list(tmp_path.rglob("last.ckpt"))


def test_image_text_takes_an_epoch_of_a_resampled_stream(fit, tmp_path):
    write_pairs(tmp_path / "train", 25, "txt", lambda number: f"grün ist es nicht: {number}")
    metrics = fit("image_text", tmp_path, data__train__dataset_size=20, trainer__max_epochs=2)
    assert math.isfinite(metrics["train_loss"])
    assert metrics["step"] == 2 * 5


def test_tokens_are_the_same_from_npy_and_from_raw_numbers(fit, run_example, tmp_path):
    tokens = np.random.default_rng(0).integers(0, 500, 6 * 1024 + 2, np.uint16)
    tokens[: 4 * 1024 + 1].tofile(tmp_path / "train.bin")
    tokens[4 * 1024 + 1 :].tofile(tmp_path / "val.bin")
    losses = []
    for suffix, settings in [("npy", {}), ("bin", {"data__decode__tokens": "uint16"})]:
        for split in ("train", "val"):
            shards = tmp_path / suffix / split
            run_example("tokens", "pack", tmp_path / f"{split}.bin", shards, suffix)
        losses.append(
            fit("tokens", tmp_path / suffix, trainer__max_steps=2, trainer__val_check_interval=1,
                trainer__accumulate_grad_batches=1, model__vocabulary=500, model__width=32,
                model__layers=1, data__fields__tokens=suffix, **settings)
        )  # fmt: skip
    assert math.isfinite(losses[0]["train_loss"])
    assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.ddp
def test_squares_are_found(tmp_path):
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    main = import_module("examples.detection").main
    trainer = main(str(tmp_path / "squares"), 600, accelerator="cpu", **dict.fromkeys(off, False))
    assert trainer.callback_metrics["val_right"] > 0.9
