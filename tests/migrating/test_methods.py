"""Each row of the page's table of methods: equal values of the same tars."""

import numpy as np
import pytest
from same_tars import (
    BATCH,
    Cases,
    loader,
    names_on_page,
    plain,
    run,
    theirs,
    values,
    values_of,
)
from webdataset import filters
from webdataset.autodecode import handle_extension

from lightning_shards.tools import reshard

pytestmark = [
    pytest.mark.filterwarnings("ignore:.with_length.. only sets the value of __len__"),
    # webdataset leaves tars open that were not read to their ends
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CASES = Cases()
row = CASES.of


def add_hundred(label):
    return label + 100


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


@row(".map_dict")
def _(data):
    mapped = theirs(data).decode().map_dict(cls=add_hundred)
    return values_of(mapped), values(loader(data, transforms={"cls": add_hundred}))


@row(".select")
def _(data):
    selected = values_of(theirs(data).select(is_even).decode())
    urls = run(reshard, data, *data.urls, "--filter", f"{__name__}:is_even")
    staged = loader(
        data, "train", sampling="resampled", reader="stream", stages=[filters.select(is_even)]
    )
    assert all(sample in selected for sample in values(staged))
    if data.reader == "indexed":
        assert values(loader(data, keep=has_even_key)) == selected
    return selected, values(loader(data, urls=urls))


@row(".to_tuple")
def _(data):
    tuples = theirs(data).decode("torchrgb8").to_tuple("jpg;png", "cls").batched(BATCH)
    settings = {"fields": {"image": "jpg;png", "label": "cls"}, "batch_format": "tuple"}
    ours = loader(data, "train", **settings)
    return [plain(batch) for batch in tuples], [plain(batch[:2]) for batch in ours]


@row(".rename_keys")
def _(data):
    renamed = theirs(data).decode().rename_keys(label="cls", meta="js*")
    ours = loader(data, fields={"label": "cls", "meta": "json"})
    return values_of(renamed, "label", "meta"), values(ours, "label", "meta")


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_true(data, name):
    expected, ours = CASES[name](data)
    assert ours == expected
    assert expected


def test_the_rows_are_on_the_page():
    assert CASES.keys() <= names_on_page()
