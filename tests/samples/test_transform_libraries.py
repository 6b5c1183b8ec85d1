"""What docs/transforms.md says about other libraries, run with those that are installed.

Each crop is that of image and mask, is another one for each sample, and is the same in workers.
"""

import io
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

PAGE = Path(__file__).parents[2] / "docs" / "transforms.md"
LIBRARIES = {
    "Albumentations": ("albumentations", {"albumentations": "albumentations"}),
    "TorchvisionV2": (
        "torchvision",
        {"v2": "torchvision.transforms.v2", "tv_tensors": "torchvision.tv_tensors"},
    ),
    "Monai": ("monai", {"RandSpatialCropd": "monai.transforms"}),
}


def told_class(name):
    """The class of the page, with the modules that it uses."""
    library, modules = LIBRARIES[name]
    pytest.importorskip(library, reason=f"{library} is no dependency")
    scope = {"torch": torch}
    for alias, path in modules.items():
        module = import_module(path)
        scope[alias] = getattr(module, alias, module)
    told = re.search(rf"^class {name}:\n(?:(?:    .*)?\n)+", PAGE.read_text(), re.MULTILINE)
    exec(told[0], scope)
    return scope[name]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_crops_image_and_mask_alike(name, tmp_path):
    transform = told_class(name)()
    rng = np.random.default_rng(0)
    with TarWriter(str(tmp_path / "0.tar")) as writer:
        for number in range(6):
            file = io.BytesIO()
            pixels = rng.integers(256, size=(256, 256), dtype=np.uint8)
            Image.fromarray(pixels).save(file, "PNG")
            data = file.getvalue()
            writer.write({"__key__": str(number), "png": data, "mask.png": data})
    epochs = [batches(tmp_path, transform, num_workers) for num_workers in (0, 0, 2)]
    seen = set()
    for batch, *others in zip(*epochs, strict=True):
        image, mask = batch["image"][:, 0], batch["mask"].reshape(batch["image"][:, 0].shape)
        assert image.shape[1:] == (224, 224)
        if name != "TorchvisionV2":  # which resizes, and interpolates images alone
            assert image.equal(mask.to(image.dtype))
        assert all(other["image"].equal(batch["image"]) for other in others)
        assert all(other["mask"].equal(batch["mask"]) for other in others)
        seen |= {row.numpy().tobytes() for row in image}
    assert len(seen) == 6


def batches(folder, transform, num_workers):
    module = ShardDataModule(
        train=SplitConfig(str(folder / "0.tar"), sampling="shuffled"),
        fields={"image": "png", "mask": "mask.png"},
        decode={"mask": "gray"},
        sample_transforms=[transform],
        batch_size=3,
        num_workers=num_workers,
        loader=LoaderConfig(cache_dir=str(folder / "cache"), multiprocessing_context="fork"),
    )
    loader = module.loader("train")
    try:
        return list(loader)
    finally:
        loader.close()
