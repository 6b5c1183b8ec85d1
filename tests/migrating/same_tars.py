"""The same tars through webdataset and through this package, and the values of both."""

import inspect
import io
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from webdataset.compat import WebDataset

from lightning_shards import ShardDataModule, SplitConfig
from lightning_shards.config.loading import LoaderConfig

PAGE = Path(__file__).parents[2] / "docs" / "start.md"
SPLIT = set(inspect.signature(SplitConfig).parameters)
NUM_SAMPLES, BATCH = 12, 4


class Data(NamedTuple):
    """Tars, and how ours are read."""

    urls: list[str]
    folder: Path
    reader: str


class Cases(dict[str, Callable[[Data], tuple[object, object]]]):
    """By row of the page, what gives webdataset's values and ours."""

    def of(self, *names):
        """Register the case of these rows."""

        def register(case):
            self.update(dict.fromkeys(names, case))
            return case

        return register


def add_sample(writer, number, image=None):
    file = io.BytesIO()
    Image.fromarray(np.full((3, 2, 3), 7 * number, np.uint8)).save(file, "PNG")
    writer.write(
        {
            "__key__": f"{number:03d}",
            "png": image or file.getvalue(),
            "cls": str(number),
            "json": json.dumps({"n": number}).encode(),
        }
    )


def theirs(data, urls=None, **settings):
    return WebDataset(urls or data.urls, **{"shardshuffle": False} | settings)


def loader(data, split="val", *, urls=None, place=None, **settings):
    """Our loader of a split, which is sequential unless it says otherwise."""
    of_split = {name: settings.pop(name) for name in SPLIT & settings.keys() - {"transforms"}}
    of_split = {"reader": data.reader, "sampling": "sequential"} | of_split
    settings = {"fields": {"cls": "cls"}, "batch_size": BATCH, "num_workers": 0} | settings
    pool = settings.pop("pool", "processes")
    cache = LoaderConfig(
        pool=pool, cache_dir=str(data.folder / "cache"), multiprocessing_context="fork"
    )
    shards = None if "mix" in of_split else urls or data.urls
    module = ShardDataModule(**{split: SplitConfig(shards, **of_split)}, loader=cache, **settings)
    return module.loader(split, **(place or {}))


def plain(value):
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, Image.Image):
        return np.asarray(value).tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def values(batches, *names):
    """By sample, the values of these entries of our batches."""
    batches = list(batches)  # once: each pass of a loader is another epoch
    columns = ([plain(batch[name]) for batch in batches] for name in names or ("__key__", "cls"))
    return [list(row) for row in zip(*map(itertools.chain.from_iterable, columns), strict=True)]


def values_of(samples, *names):
    """The same of samples, webdataset's or ours."""
    return [[plain(sample[name]) for name in names or ("__key__", "cls")] for sample in samples]


def run(tool, data, *arguments, out="out"):
    """The pattern of the shards that a tool writes."""
    folder = data.folder / out
    cache = ("--cache-dir", str(data.folder / "cache"), "--processes", "1")
    tool.main([*map(str, arguments), "--out", str(folder), *cache])
    return str(folder / "*.tar")


def names_on_page():
    """What the rows of the page's table are about."""
    part = PAGE.read_text().split("## Coming from webdataset\n")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (.*?) \|", part, re.MULTILINE)
    return {name for cell in first_cells for name in re.findall(r"`(\.?\w+=?)", cell)}
