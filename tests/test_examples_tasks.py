"""The examples for images, image-text pairs and tokens, each on tiny data of its kind."""

import functools
import io
import json
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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

Batches = dict[str, list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def called_from_the_root(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))  # main() puts it there too; this takes both back
    monkeypatch.setenv("HOME", str(tmp_path))  # caches lie there
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # seed_everything sets it, this takes it back


@pytest.fixture
def run_example(monkeypatch, tmp_path):
    """Does what `python examples/NAME.py ARGUMENTS` does, in this process."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"examples/{name}.py", *arguments])
        runpy.run_path(f"examples/{name}.py", run_name="__main__")

    return run


@pytest.fixture
def fit(run_example, tmp_path):
    """Does the command in an example's first line, small, on `train` and `val` in a folder."""

    def fitted(name, shards, **settings):
        given = SMALL | {"trainer.default_root_dir": tmp_path, "data.loader.cache_dir": tmp_path}
        splits = [split for split in ("train", "val") if (shards / split).exists()]
        given |= {f"data.{split}.urls": shards / split / "*.tar" for split in splits}
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        options = [f"--{key}={value}" for key, value in given.items()]
        run_example(name, "fit", "--config", f"configs/{name}.yaml", *options)

    return fitted


def watch(monkeypatch: pytest.MonkeyPatch, model_class: Any) -> tuple[Batches, list[Any]]:
    """The batches of each split that the model will be given, and the models."""
    batches: Batches = {"training_step": [], "validation_step": []}
    models: list[Any] = []

    def watched(name: str) -> None:
        step = getattr(model_class, name)

        @functools.wraps(step)
        def kept(self: Any, batch: dict[str, Any]) -> Any:
            models.append(self)
            batches[name].append(batch)
            return step(self, batch)

        monkeypatch.setattr(model_class, name, kept)

    for name in batches.keys() & vars(model_class).keys():
        watched(name)
    return batches, models


def keys_of(batches: list[dict[str, Any]]) -> list[str]:
    """Keys of the samples that count."""
    counted: list[str] = []
    for batch in batches:
        keys = batch["__key__"]
        weights = batch.get("__weight__", torch.ones(len(keys))).tolist()
        counted += [key for key, weight in zip(keys, weights, strict=True) if weight]
    return counted


def jpeg(pixels: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=95)
    return data.getvalue()


def pack_photos(folder: Path, count: int) -> list[str]:
    """JPEGs of any size in five classes, in shards of seven; their keys."""
    rng = np.random.default_rng(count)
    keys = [f"{number:05d}" for number in range(count)]
    with ShardWriter(folder, max_samples=7) as shards:
        for number, key in enumerate(keys):
            height, width = rng.integers(20, 50, size=2)
            photo = jpeg(rng.integers(0, 256, (height, width, 3), np.uint8))
            shards.write({"__key__": key, "jpg": photo, "cls": str(number % 5)})
    return keys


def test_imagenet_trains_in_a_new_order_each_epoch_and_counts_each_validation_sample_once(
    fit, monkeypatch, tmp_path
):
    train_keys = pack_photos(tmp_path / "train", 22)
    val_keys = pack_photos(tmp_path / "val", 13)
    batches, models = watch(monkeypatch, import_module("examples.imagenet").Classifier)
    fit("imagenet", tmp_path, data__val__remainder="pad", trainer__max_epochs=2,
        model__num_classes=5, model__channels=8)  # fmt: skip
    trained = keys_of(batches["training_step"])
    first, second = trained[:20], trained[20:]  # five steps of four; two of 22 are dropped
    assert len(set(first)) == len(set(second)) == 20
    assert {*first, *second} <= set(train_keys)
    assert first != second
    validated = batches["validation_step"]
    assert keys_of(validated) == 2 * val_keys
    assert all(batch["image"].shape[1:] == (3, 224, 224) for batch in validated)

    model, last = models[-1].eval(), validated[len(validated) // 2 :]
    with torch.no_grad():
        right = sum(int((model(b["image"]).argmax(1) == b["label"]).mul(b["__weight__"]).sum())
                    for b in last)  # fmt: skip
    accuracy = model.trainer.callback_metrics["val_accuracy"]
    assert accuracy == pytest.approx(right / 13)
    assert list(tmp_path.rglob("last.ckpt"))


def pack_pairs(folder: Path, count: int) -> None:
    """Pictures of one gray value each, which their captions tell."""
    with ShardWriter(folder, max_samples=7) as shards:
        for gray in range(0, 10 * count, 10):
            picture = jpeg(np.full((30, 20 + gray // 4, 3), gray, np.uint8))
            meta = json.dumps({"gray": gray, "url": "https://example.org/a.jpg"})
            caption = f"grün ist es nicht: {gray}"
            shards.write({"__key__": f"{gray:09d}", "jpg": picture, "txt": caption, "json": meta})


def test_image_text_keeps_pictures_with_their_captions_in_a_resampled_stream(
    fit, monkeypatch, tmp_path
):
    pack_pairs(tmp_path / "train", 25)
    batches, models = watch(monkeypatch, import_module("examples.image_text").ImageText)
    fit("image_text", tmp_path, data__train__dataset_size=20, trainer__max_epochs=2)
    steps = batches["training_step"]
    assert [len(batch["__key__"]) for batch in steps] == 10 * [4]  # 20 samples an epoch
    for batch in steps:
        assert batch["image"].shape == (4, 3, 224, 224)
        grays = [meta["gray"] for meta in batch["meta"]]
        assert [int(key) for key in batch["__key__"]] == grays
        for gray, image, tokens in zip(grays, batch["image"], batch["text"], strict=True):
            assert image.float().mean() == pytest.approx(gray, abs=2)
            assert bytes(tokens.tolist()).rstrip(b"\0").decode() == f"grün ist es nicht: {gray}"
    assert models[-1].trainer.callback_metrics["train_loss"].isfinite()


@pytest.fixture
def stream(tmp_path):
    """20 blocks of 16 tokens, and one to begin with; 5 blocks of others to validate on."""
    tokens = np.random.default_rng(0).integers(0, 500, 25 * 16 + 2, np.uint16)
    tokens[:321].tofile(tmp_path / "train.bin")
    tokens[321:].tofile(tmp_path / "val.bin")
    return tokens


@pytest.fixture
def fit_tokens(fit, stream, monkeypatch, tmp_path):
    """Fits two epochs on members of a kind: the batches, and the model."""
    tokens = import_module("examples.tokens")

    def fitted(suffix, **settings):
        folder = tmp_path / suffix
        for split in ("train", "val"):
            tokens.pack(str(tmp_path / f"{split}.bin"), str(folder / split), suffix, length=16)
        with monkeypatch.context() as patch:
            batches, models = watch(patch, tokens.NextToken)
            fit("tokens", folder, trainer__max_steps=10, trainer__val_check_interval=5,
                trainer__accumulate_grad_batches=1, model__vocabulary=500, model__width=32,
                model__layers=1, **settings)  # fmt: skip
        return batches, models[-1]

    return fitted


def test_tokens_are_the_same_from_npy_and_from_raw_numbers(fit_tokens, stream):
    batches, model = fit_tokens("npy")
    trained = batches["training_step"]
    for epoch in (trained[:5], trained[5:]):
        assert sorted(keys_of(epoch)) == [f"{number:09d}" for number in range(20)]
    for batch in trained:
        for key, block in zip(batch["__key__"], batch["tokens"], strict=True):
            start = 16 * int(key)
            assert block.tolist() == stream[start : start + 17].tolist()

    last = batches["validation_step"][-2:]  # four blocks, one and three repeats
    assert keys_of(last) == [f"{number:09d}" for number in range(5)]
    losses = model.trainer.callback_metrics
    raw, raw_model = fit_tokens("bin", data__fields__tokens="bin", data__decode__tokens="uint16")
    for batch, again in zip(trained, raw["training_step"], strict=True):
        assert batch["__key__"] == again["__key__"]
        assert torch.equal(batch["tokens"], again["tokens"])
    assert raw_model.trainer.callback_metrics["train_loss"] == losses["train_loss"]
