"""What those who come from webdataset are guaranteed, in the names of its tests.

The same tars go through webdataset and through this package, and the values are equal.
"""

import inspect
import io
import itertools
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from webdataset import filters
from webdataset.autodecode import handle_extension
from webdataset.compat import WebDataset
from webdataset.writer import TarWriter

from lightning_shards import ShardDataModule, SplitConfig
from lightning_shards.config.module import LoaderConfig
from lightning_shards.tools import reshard

pytestmark = [
    pytest.mark.filterwarnings("ignore:.with_length.. only sets the value of __len__"),
    # webdataset leaves tars open that were not read to their ends
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PAGE = Path(__file__).parents[2] / "docs" / "start.md"
SPLIT = set(inspect.signature(SplitConfig).parameters)
BATCH = 4


class Data(NamedTuple):
    """Tars, and how ours are read."""

    urls: list[str]
    folder: Path
    reader: str


@pytest.fixture(scope="session")
def urls(tmp_path_factory):
    """Four tars of three samples."""
    folder = tmp_path_factory.mktemp("tars")
    made = [str(folder / f"{shard}.tar") for shard in range(4)]
    for shard, url in enumerate(made):
        with TarWriter(url) as writer:
            for number in range(3 * shard, 3 * shard + 3):
                png = io.BytesIO()
                Image.fromarray(np.full((3, 2, 3), 7 * number, np.uint8)).save(png, "PNG")
                fields = {"png": png.getvalue(), "cls": str(number), "json": {"n": number}}
                writer.write({"__key__": f"{number:03d}"} | fields)
    return made


@pytest.fixture(params=["indexed", "stream"])
def data(urls, tmp_path, request):
    """The tars, and how ours are read."""
    return Data(urls, tmp_path, request.param)


def theirs(data, **settings):
    return WebDataset(data.urls, **{"shardshuffle": False} | settings)


def loader(data, split="val", *, urls=None, place=None, **settings):
    """Our loader of a split, which is sequential unless it says otherwise."""
    of_split = {name: settings.pop(name) for name in SPLIT & settings.keys() - {"transforms"}}
    of_split = {"reader": data.reader, "sampling": "sequential"} | of_split
    settings = {"fields": {"cls": "cls"}, "batch_size": BATCH, "num_workers": 0} | settings
    pool, cache_dir = settings.pop("pool", "processes"), str(data.folder / "cache")
    cache = LoaderConfig(pool=pool, cache_dir=cache_dir)
    shards = SplitConfig(urls or data.urls, **of_split)
    module = ShardDataModule(**{split: shards}, loader=cache, **settings)
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


CASES = {}
"""By row of the page, what gives webdataset's values and ours."""


def row(*names):
    """Register the case of these rows."""
    return lambda case: CASES.update(dict.fromkeys(names, case))


@row("shardshuffle=", "detshuffle=", "seed=")
def _(data):
    for settings in ({"shardshuffle": 4}, {"shardshuffle": 4, "detshuffle": True, "seed": 1}):
        shuffled = values_of(theirs(data, **settings).decode())
        ours = values(loader(data, "train", sampling="shuffled", seed=1))
        assert ours == values(loader(data, "train", sampling="shuffled", seed=1))
        assert ours != values(loader(data, "train", sampling="shuffled", seed=2))
    return sorted(shuffled), sorted(ours)


@row("nodesplitter=", "workersplitter=")
def _(data):
    """Each sample is served once over two ranks of two workers."""
    served = []
    for rank, worker in itertools.product(range(2), range(2)):

        def split(urls, start=2 * rank + worker):
            return itertools.islice(urls, start, None, 4)

        served += values_of(theirs(data, nodesplitter=split, workersplitter=None).decode())
    ours = [
        loader(
            data, num_workers=2, batch_size=2, place={"rank": rank, "world_size": 2}, pool="threads"
        )
        for rank in range(2)
    ]
    made = []
    for each in ours:
        with each:
            made += values(each)
    return sorted(served), sorted(made)


@row("resampled=", "mode=")
def _(data):
    """Draws differ; both are of all samples, and may repeat some."""
    known = values_of(theirs(data).decode())
    split = {"sampling": "resampled", "reader": "stream", "dataset_size": 40}
    ours = values(loader(data, "train", **split))
    for settings in ({"resampled": True}, {"mode": "resampled"}):
        drawn = values_of(theirs(data, **settings).decode().with_epoch(40))
        assert len({key for key, _ in drawn}) < len(drawn) == len(ours)
        assert all(sample in known for sample in drawn + ours)
    return True, len({key for key, _ in ours}) < len(ours)


def change_sample(sample):
    return sample | {"cls": sample["cls"] * 2}


def is_even(sample):
    return int(sample["cls"]) % 2 == 0


def has_even_key(shard):
    return np.array([int(key) % 2 == 0 for key in shard.keys])


def parse(data):
    return 10 * int(data)


@row(".shuffle")
def _(data):
    shuffled = values_of(theirs(data).decode().shuffle(100, initial=100))
    by_buffer = values(
        loader(data, "train", sampling="shuffled", reader="stream", shuffle_buffer=100)
    )
    ours = values(loader(data, "train", sampling="shuffled"))
    for order in (by_buffer, ours):
        assert order != sorted(order)
        assert sorted(order) == sorted(shuffled)
    return sorted(shuffled), sorted(ours)


@row(".map")
def _(data):
    mapped = theirs(data).decode().map(change_sample)
    return values_of(mapped), values(loader(data, sample_transforms=[change_sample]))


@row(".decode")
def _(data):
    images = {"fields": {"png": "png", "json": "json"}}
    decoded = theirs(data).decode("rgb8")
    ours = loader(data, **images)
    expected = values_of(decoded, "__key__", "json", "png")
    channels_last = [batch | {"png": batch["png"].permute(0, 2, 3, 1)} for batch in ours]
    numbers = [batch | {"json": [{"n": n["n"]} for n in batch["json"]]} for batch in channels_last]
    assert values(numbers, "__key__", "json", "png") == expected
    pil = theirs(data).decode("pil", handle_extension("cls", parse))
    settings = {"decode": {"png": "pil", "cls": parse}, "fields": {"png": "png", "cls": "cls"}}
    names = ("__key__", "cls", "png")
    return values_of(pil, *names), values(loader(data, **settings), *names)


@row(".select")
def _(data):
    selected = values_of(theirs(data).select(is_even).decode())
    cache = ("--cache-dir", str(data.folder / "cache"), "--processes", "1")
    written = ("--out", str(data.folder / "out"), "--filter", f"{__name__}:is_even")
    reshard.main([*data.urls, *written, *cache])
    staged = loader(
        data, "train", sampling="resampled", reader="stream", stages=[filters.select(is_even)]
    )
    assert all(sample in selected for sample in values(staged))
    if data.reader == "indexed":
        assert values(loader(data, keep=has_even_key)) == selected
    return selected, values(loader(data, urls=str(data.folder / "out" / "*.tar")))


@row(".to_tuple")
def _(data):
    tuples = theirs(data).decode("torchrgb8").to_tuple("jpg;png", "cls").batched(BATCH)
    settings = {"fields": {"image": "jpg;png", "label": "cls"}, "batch_format": "tuple"}
    ours = loader(data, "train", **settings)
    return [plain(batch) for batch in tuples], [plain(batch[:2]) for batch in ours]


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_true(data, name):
    expected, ours = CASES[name](data)
    assert ours == expected
    assert expected


def test_the_rows_are_on_the_page():
    part = PAGE.read_text().split("## Coming from webdataset\n")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (.*?) \|", part, re.MULTILINE)
    assert CASES.keys() <= {
        name for cell in first_cells for name in re.findall(r"`(\.?\w+=?)", cell)
    }
