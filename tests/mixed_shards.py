"""Shards of small mixtures, and what each sample of them holds."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule

COUNTS = {"web": [5, 0, 9, 3], "labels": [4, 2], "more": [6, 1]}
"""Samples of the shards of each component; `labels` are named otherwise in their shards."""

LABELS = {
    "fields": {"image": "img.png", "label": "class.txt"},
    "decode": {"image": "gray", "label": "int"},
}
"""The settings of `labels`."""

MORE = {"fields": {"image": "png", "label": "cls?"}}
"""The settings of `more`, whose samples may lack a label."""

WEIGHTS = {"web": 5, "labels": 2, "more": 1}
ROUND = 8


def pack_component(folder: Path, name: str, counts: Sequence[int], size: int = 4) -> list[str]:
    """Sample number n of a component has the key ``web007``, the class n and pixels of value n."""
    image, label = ("img.png", "class.txt") if name == "labels" else ("png", "cls")
    folder.mkdir(parents=True, exist_ok=True)
    urls: list[str] = []
    number = 0
    for shard, count in enumerate(counts):
        urls.append(str(folder / f"{name}-{shard}.tar"))
        with TarWriter(urls[-1]) as writer:
            for _ in range(count):
                png = io.BytesIO()
                Image.fromarray(np.full((size, size), number, np.uint8)).save(png, "PNG")
                members = {image: png.getvalue(), label: str(number)}
                writer.write({"__key__": f"{name}{number:03d}", **members})
                number += 1
    return urls


def mix_of(
    folder: Path, names: Sequence[str], **settings: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The components of a mix by name, packed; `settings` are those of components."""
    return {
        name: {
            "urls": pack_component(folder, name, COUNTS[name]),
            "weight": WEIGHTS[name],
            **{"labels": LABELS, "more": MORE}.get(name, {}),
            **settings.get(name, {}),
        }
        for name in names
    }


def module_of(
    folder: Path, mix: dict[str, Any], split: dict[str, Any] | None = None, **settings: Any
) -> ShardDataModule:
    """A data module that trains on this mix, with rounds of 8 in epochs of 32 samples."""
    own = {"sampling": "shuffled", "shuffle_run": 2, "shuffle_block": 8, "dataset_size": 32}
    defaults: dict[str, Any] = {
        "fields": {"image": "png", "label": "cls"},
        "decode": {"image": "gray"},
        "batch_size": 8,
        "num_workers": 0,
        "seed": 7,
        "loader": LoaderConfig(cache_dir=str(folder / "cache")),
    }
    train = {"mix": mix, "round": ROUND, **own, **(split or {})}
    return ShardDataModule(train, **{**defaults, **settings})
