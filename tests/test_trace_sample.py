"""The way of a sample through the package is the one that docs/behind_the_scenes.md tells."""

import io
import re
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
from PIL import Image

from lightning_shards import DecodeRandomResizedCrop, LoaderConfig, ShardDataModule, SplitConfig

PAGE = Path(__file__).parents[1] / "docs" / "behind_the_scenes.md"
PACKAGE = "lightning_shards."
MOST_MODULES = 22


def modules_told() -> list[str]:
    """The modules in the rows of the page's letters."""
    cells = re.findall(r"^\| [A-Z] \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    paths = re.findall(r"`([\w/]+)\.py`", " ".join(cells))
    return [path.replace("/", ".") for path in paths]


def modules_entered(step: Callable[[], object]) -> list[str]:
    """The modules of the package whose functions a step calls, in the order of the first calls."""
    modules: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        is_written = not frame.f_code.co_filename.startswith("<")  # methods of dataclasses are not
        if event == "call" and name.startswith(PACKAGE) and is_written:
            modules.append(name.removeprefix(PACKAGE))

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return list(dict.fromkeys(modules))


def jpeg() -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def test_a_batch_enters_the_modules_that_the_page_tells_of_in_their_order(tmp_path):
    """It is the second one: what is done once for many samples is done before the first."""
    url = str(tmp_path / "shard.tar")
    with tarfile.open(url, "w") as tar:
        for number in range(8):
            for suffix, content in (("jpg", jpeg()), ("cls", b"7")):
                info = tarfile.TarInfo(f"{number}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    data = ShardDataModule(
        train=SplitConfig(url, sampling="shuffled"),
        fields={"image": "jpg", "label": "cls"},
        transforms={"image": DecodeRandomResizedCrop(size=32)},
        batch_size=4,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
    )
    batches = iter(data.loader("train"))
    next(batches)
    entered = modules_entered(lambda: next(batches))
    assert entered == modules_told()
    assert len(entered) <= MOST_MODULES
