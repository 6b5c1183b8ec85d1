"""Each row of the page's table of methods: equal values of the same tars."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from same_tars import (
    BATCH,
    NUM_SAMPLES,
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
from webdataset.mix import RandomMix

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


@row(".batched")
def _(data):
    batched = theirs(data).decode().to_tuple("cls").batched(5, partial=False)
    ours = loader(data, "train", batch_size=5, remainder="drop")
    partial = theirs(data).decode().to_tuple("cls").batched(5)
    balanced = [batch["cls"].tolist() for batch in loader(data, batch_size=5)]
    flat = itertools.chain.from_iterable
    assert list(flat(balanced)) == list(flat(plain(labels) for (labels,) in partial))
    return [plain(labels) for (labels,) in batched], [batch["cls"].tolist() for batch in ours]


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


@row(".with_epoch")
def _(data):
    """Draws differ; both give so many samples of the same set, whatever the tars hold."""
    known = values_of(theirs(data).decode())
    drawn = values_of(theirs(data, resampled=True).decode().with_epoch(20))
    split = {"sampling": "resampled", "reader": "stream", "dataset_size": 20}
    ours = values(loader(data, "train", **split))
    assert all(sample in known for sample in drawn + ours)
    return len(drawn), len(ours)


@row("associate")
def _(data):
    extra = {f"{number:03d}": {"text": f"t{number}"} for number in range(NUM_SAMPLES)}
    associated = filters.associate(extra)(iter(theirs(data).decode()))

    def look_up(sample):
        return sample | extra[sample["__key__"]]

    ours = loader(data, sample_transforms=[look_up])
    if data.reader == "indexed":
        path = data.folder / "texts.parquet"
        rows = {"__key__": list(extra), "text": [row["text"] for row in extra.values()]}
        parquet.write_table(pa.table(rows), path)
        joined = values(loader(data, join={"text": str(path)}), "cls", "text")
        assert joined == values(ours, "cls", "text")
    return values_of(associated, "cls", "text"), values(ours, "cls", "text")


@row("RandomMix")
def _(data):
    """Both serve each sample once if they end with the longest; ours in batches of 3 and 1."""
    parts = {"many": data.urls[:3], "few": data.urls[3:]}
    mixed = RandomMix(
        [theirs(data, urls).decode() for urls in parts.values()], [3, 1], longest=True
    )
    mix = {
        name: {"urls": urls, "weight": weight}
        for (name, urls), weight in zip(parts.items(), (3, 1), strict=True)
    }
    sampling = "shuffled" if data.reader == "indexed" else "resampled"
    ours = list(loader(data, "train", mix=mix, dataset_size=NUM_SAMPLES, sampling=sampling))
    counts = [batch["__component__"].bincount().tolist() for batch in ours]
    assert counts == [[3, 1]] * (NUM_SAMPLES // BATCH)
    expected = sorted(values_of(mixed))
    if data.reader == "stream":  # which draws with replacement
        assert all(sample in expected for sample in values(ours))
        return expected, expected
    return expected, sorted(values(ours))


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_true(data, name):
    expected, ours = CASES[name](data)
    assert ours == expected
    assert expected


def test_the_rows_are_on_the_page():
    assert CASES.keys() <= names_on_page()
