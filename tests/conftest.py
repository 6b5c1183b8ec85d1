"""Shards for all tests, and how long hypothesis may search."""

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from PIL import Image
from webdataset.writer import TarWriter

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=200)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=20_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

PackShards = Callable[..., list[str]]


def pack(folder: Path, counts: Sequence[int], prefix: str = "shard") -> list[str]:
    """Shards with `counts` samples each: a 4x4 gray PNG of one value, and a class.

    Sample number i of the whole data set has the key f"{i:06d}", the pixel value i % 256 and the
    class i % 10.
    """
    folder.mkdir(parents=True, exist_ok=True)
    urls: list[str] = []
    number = 0
    for shard, count in enumerate(counts):
        urls.append(str(folder / f"{prefix}-{shard:06d}.tar"))
        with TarWriter(urls[-1]) as writer:
            for _ in range(count):
                png = io.BytesIO()
                Image.fromarray(np.full((4, 4), number % 256, np.uint8)).save(png, "PNG")
                label = str(number % 10)
                writer.write({"__key__": f"{number:06d}", "png": png.getvalue(), "cls": label})
                number += 1
    return urls


@pytest.fixture
def pack_shards(tmp_path: Path) -> PackShards:
    """Packs shards into this test's own folder: `pack_shards([5, 9, 3])` gives their paths."""

    def packed(counts: Sequence[int], prefix: str = "shard") -> list[str]:
        return pack(tmp_path / "shards", counts, prefix)

    return packed
