"""Batches of the indexed reader in a process that has no torch before a transform imports it.

python -m tests.programs.batches_without_torch URL CACHE: prints what it found as JSON. The tests
call its functions in their own process, which has torch, and compare.
"""

import hashlib
import json
import random
import re
import sys
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.recipe import Recipe
from lightning_shards.samples.crops import DecodeRandomResizedCrop
from lightning_shards.samples.fields import make_fields
from lightning_shards.samples.tensors import on_load
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import CacheFolder

SAMPLES = 8
BATCHES = 2


def flip(image: np.ndarray) -> np.ndarray:
    return image[:, :, ::-1]


flip.takes_arrays = flip.deterministic = True  # type: ignore[attr-defined]  functions have a dict

NEEDLESS = (
    r"(torch|lightning|webdataset|http\.client|urllib\.request)$"
    r"|lightning_shards\.(remote|shards\.joins)"
)
"""What a read of a local tar without joins imports nothing of."""

ARRAYS = {"image": DecodeRandomResizedCrop(size=8), "small": flip}


def lazily_noisy(x: np.ndarray) -> np.ndarray:
    """Imports torch for every fourth sample, and draws from it; it changes what it was given."""
    x += random.random()
    if not int(x[0]) % 4:
        import torch

        x += torch.rand(()).item()
    return x


LAZY = {"x": lazily_noisy}


def digest_of(url: str, cache: str, transforms: Mapping[str, Callable[..., Any]]) -> str:
    """Of the arrays in the first batches."""
    folder = CacheFolder(cache)
    index = load_index([url], cache=folder)
    assert index.counts is not None
    raw = {"image": "raw"} if "image" in transforms else {}
    names = {"image": "png", "small": "png", "plain": "png", "label": "cls", "x": "npy"}
    fields = make_fields(names, raw | {"small": "gray", "plain": "gray"}, frozenset())
    order = SampleOrder(index.counts, 7, "shuffled")
    epochs = EpochSchedule(SAMPLES, SAMPLES // BATCHES, "drop")
    source = IndexedSource(
        index=index,
        epochs=epochs,
        order=order,
        seed=7,
        recipes=(Recipe(fields, dict(transforms)).with_arrays(plain=True),),
        cache=folder,
    )
    digest = hashlib.sha256()
    for loaded in islice(source.batches(Place(), Cursor()), BATCHES):
        for name in ("small", "label", "x", "__id__", *raw):
            array = np.asarray(loaded.batch[name])  # type: ignore[call-overload]  a dict
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def main(url: str, cache: str) -> None:
    """Print what was found."""
    calls: list[bool] = []
    on_load(lambda: calls.append("torch" in sys.modules))
    found: dict[str, object] = {"arrays": digest_of(url, cache, ARRAYS)}
    found["needless"] = [name for name in sys.modules if re.match(NEEDLESS, name)]
    found["lazy"] = digest_of(url, cache, LAZY)
    found["calls"] = calls
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
