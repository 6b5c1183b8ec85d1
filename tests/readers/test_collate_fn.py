"""What a `collate_fn` is given, what becomes of what it returns, and its errors."""

import logging
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from lightning_shards import SplitConfig
from lightning_shards.cli import one_line
from lightning_shards.errors import TransformError
from lightning_shards.plan.place import Place
from lightning_shards.samples.crops import DecodeResize

FIELDS = {"image": "png", "label": "cls"}
READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])


@dataclass(frozen=True)
class Kept:
    """Gives the samples as they came, in a list."""

    takes_arrays: bool = False

    def __call__(self, samples):
        return samples


def labels_alone(samples):
    return {"label": torch.tensor([sample["label"] for sample in samples])}


def fail_on_three(samples):
    numbers = [sample["label"] for sample in samples]
    return {"label": [10 / (3 - number) for number in numbers]}


def split_of(urls, reader, **settings):
    return SplitConfig(urls, **{"sampling": "sequential", "reader": reader} | settings)


@READERS
def test_it_gets_whole_samples(pack_shards, make_module, reader):
    split = split_of(pack_shards([2, 1]), reader, collate_fn=Kept(), remainder="pad")
    module = make_module(split, fields=FIELDS, decode={"image": "gray"})
    first, last = module.loader("train")
    assert [list(sample) for sample in first] == 2 * [
        ["image", "label", "__key__", "__url__", "__id__", "__weight__"]
    ]
    assert [sample["label"] for sample in first + last] == [0, 1, 2, 0]
    assert [sample["__key__"] for sample in first] == ["000000", "000001"]
    assert [sample["__id__"] for sample in first + last] == [(0, 0), (0, 1), (1, 0), (0, 0)]
    assert [sample["__weight__"] for sample in first + last] == [1.0, 1.0, 1.0, 0.0]
    assert last[0]["__url__"].endswith("shard-000001.tar")
    assert first[0]["image"].shape == (1, 4, 4)


@pytest.mark.parametrize(
    "transforms", [{}, {"image": DecodeResize(size=4)}], ids=["decoded", "cropped"]
)
@pytest.mark.parametrize("takes_arrays", [False, True])
@READERS
def test_pixels_are_tensors_unless_it_takes_arrays(
    pack_shards, make_module, reader, takes_arrays, transforms
):
    split = split_of(pack_shards([2]), reader, collate_fn=Kept(takes_arrays=takes_arrays))
    module = make_module(split, fields=FIELDS, transforms=transforms)
    (batch,) = module.loader("train")
    expected = np.ndarray if takes_arrays else torch.Tensor
    assert [type(sample["image"]) for sample in batch] == [expected, expected]
    assert [sample["image"].shape for sample in batch] == [(3, 4, 4), (3, 4, 4)]
    assert np.asarray(batch[1]["image"]).tolist() == np.ones((3, 4, 4)).tolist()


@pytest.mark.parametrize("remainder", ["drop", "pad"])
@READERS
def test_a_dict_gets_the_reserved_entries_that_it_lacks(
    pack_shards, make_module, reader, remainder
):
    split = split_of(pack_shards([3]), reader, collate_fn=labels_alone, remainder=remainder)
    batch = list(make_module(split).loader("train"))[-1]
    weight = ["__weight__"] if remainder == "pad" else []
    assert list(batch) == ["__key__", "label", "__id__", *weight]
    if weight:
        assert batch["__key__"] == ["000002", "000000"]
        assert batch["__id__"].tolist() == [[0, 2], [0, 0]]
        assert batch["__weight__"].tolist() == [1.0, 0.0]
        assert batch["__weight__"].dtype == torch.float32


@pytest.mark.parametrize("on_bad_sample", ["raise", "substitute"])
@READERS
def test_its_error_names_it_and_the_samples_of_the_batch(
    pack_shards, make_module, reader, on_bad_sample
):
    bad = {"on_bad_sample": on_bad_sample, "max_bad": 2 * (on_bad_sample == "substitute")}
    split = split_of(pack_shards([9, 3]), reader, collate_fn=fail_on_three, batch_size=10, **bad)
    with pytest.raises(TransformError) as caught:
        list(make_module(split).loader("train"))
    assert one_line(caught.value) == (
        "collate_fn, which is fail_on_three, failed on the batch of samples '000000', '000001', "
        "'000002', '000003', '000004', '000005', '000006', '000007' and 2 more: "
        "ZeroDivisionError: division by zero; it is called with a list of samples, each a dict of "
        "fields"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def mixed(samples):
    share = random.random() if len(samples) > 1 else 1.0
    return {"label": share * samples[0]["label"]}


@READERS
def test_one_that_draws_is_warned_about(pack_shards, make_module, reader, caplog):
    split = split_of(pack_shards([3]), reader, collate_fn=mixed)
    with caplog.at_level(logging.WARNING):
        make_module(split).source("train").first_sample(Place())
    assert "collate_fn, which is mixed, made two results of the same values" in caplog.text
    assert caplog.text.count("so that no run can be repeated") == 1
