"""Transforms of whole samples: what they get, what they may return, and where it goes."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_shards import SplitConfig
from lightning_shards.errors import ConfigError, SampleError, TransformError
from lightning_shards.readers import indexed

COUNTS = [3, 5, 2]
FIELDS = {"image": "png", "mask": "mask.png", "label": "cls"}


def crop_alike(sample, rng):
    top, left = rng.integers(5, size=2).tolist()
    for name in ("image", "mask"):
        sample[name] = sample[name][:, top : top + 4, left : left + 4]
    return sample


def draw(sample, rng):
    return {**sample, "drawn": [*sample.get("drawn", []), int(rng.integers(2**60))]}


def draw_more(numbers, rng):
    return [*numbers, int(rng.integers(2**60))]


def draw_globally(sample):
    return {**sample, "drawn": torch.rand(2)}


def rename(sample):
    sample["seen"] = sample.pop("image").float().mean(), sample.pop("mask").shape
    return sample


def describe(sample):
    kinds = {name: type(value).__name__ for name, value in sample.items()}
    return {"order": list(sample), "kinds": kinds, "label": sample["label"]}


def describe_arrays(sample):
    return describe(sample)


describe_arrays.takes_arrays = True


@pytest.fixture
def urls(tmp_path, write_tar):
    """Images whose mask has the same pixels, of which no two are alike."""
    rng, shards = np.random.default_rng(0), []
    for shard, count in enumerate(COUNTS):
        members = []
        for number in range(count):
            pixels = Image.fromarray(rng.integers(256, size=(8, 8), dtype=np.uint8))
            pixels.save(png := io.BytesIO(), "PNG")
            of_sample = {"png": png.getvalue(), "mask.png": png.getvalue(), "cls": b"%d" % number}
            members += [(f"{shard}{number}.{suffix}", data) for suffix, data in of_sample.items()]
        shards.append(str(write_tar(tmp_path / f"shard-{shard}.tar", members)))
    return shards


@pytest.fixture
def module(urls, make_module):
    def make(*sample_transforms, reader="indexed", split=None, **settings):
        given = {"fields": FIELDS, "sample_transforms": list(sample_transforms), **settings}
        return make_module(
            SplitConfig(urls, **{"sampling": "shuffled", "reader": reader, **(split or {})}),
            **{"decode": {"image": "gray", "mask": "gray"}, "batch_size": 4, "seed": 3, **given},
        )

    return make


@pytest.fixture(params=["stream", "indexed", "indexed by samples"])
def reader(request, monkeypatch):
    """The readers, and the indexed one when it makes batches sample by sample."""
    if request.param == "indexed by samples":
        monkeypatch.setattr(indexed, "can_decode", lambda _: False)
    return request.param.split()[0]


def batches(made):
    return list(made.loader("train"))


def as_bytes(value):
    return (value.dtype, value.shape, value.numpy().tobytes()) if torch.is_tensor(value) else value


# --- what they get and give -----------------------------------------------------------------------


def test_image_and_mask_are_cropped_alike_and_each_sample_elsewhere(module, reader):
    for batch in batches(module(crop_alike, reader=reader)):
        assert batch["image"].shape == (4, 1, 4, 4)
        assert batch["image"].equal(batch["mask"])
        assert len({row.numpy().tobytes() for row in batch["image"]}) == 4


@pytest.mark.parametrize("transform", [crop_alike, draw, draw_globally, describe])
def test_columns_and_samples_give_the_same_bytes(module, monkeypatch, transform):
    def made():
        given = module(transform, transforms={"label": draw_label})
        return [[(k, as_bytes(v)) for k, v in batch.items()] for batch in batches(given)]

    by_columns = made()
    monkeypatch.setattr(indexed, "can_decode", lambda _: False)
    assert made() == by_columns


def draw_label(label, rng):
    return label + int(rng.integers(2**60))


def test_a_transform_gets_the_fields_in_order_and_the_identity(module, reader):
    names = ["image", "mask", "label", "__key__", "__url__", "__id__"]
    batch = batches(module(describe, reader=reader))[0]
    assert [order for order in batch["order"] if order[:6] == names] == batch["order"]
    assert batch["kinds"][0]["image"] == "Tensor"
    assert "image" not in batch  # it was left out
    batch = batches(module(describe_arrays, reader=reader))[0]
    assert batch["kinds"][0]["mask"] == "ndarray"


def test_the_list_and_the_fields_draw_on_without_repeats(module, reader):
    transforms = {"drawn": draw_more, "label": draw_label}
    drawn = []
    for batch in batches(module(draw, draw, reader=reader, transforms=transforms)):
        drawn += [number for row in batch["drawn"] for number in row]
        drawn += [label - label % 1 for label in batch["label"].tolist()]
    assert len(set(drawn)) == len(drawn) == 4 * 8


# --- bad input ------------------------------------------------------------------------------------


def returns_nothing(sample):
    sample["image"] = sample["image"] + 1


def changes_identity(sample):
    return sample | {"__key__": "new", "__id__": (0, 99)}


def test_a_wrong_result_names_the_sample_and_the_transform(module, reader):
    where = r"sample_transforms\[1\], which is returns_nothing, on sample '\d\d' of .*\.tar: "
    with pytest.raises(TransformError, match=where + "it returned no dict but a NoneType; return"):
        batches(module(crop_alike, returns_nothing, reader=reader))


def test_what_identifies_a_sample_is_kept(module, reader):
    for made, given in zip(
        batches(module(changes_identity, reader=reader)),
        batches(module(crop_alike, reader=reader)),
        strict=True,
    ):
        assert made["__key__"] == given["__key__"]
        assert made["__id__"].equal(given["__id__"])


def drop_some(sample):
    if sample["label"] > 1:
        del sample["mask"]
    return sample


def test_samples_of_a_batch_that_have_other_fields_are_both_named(module, reader):
    with pytest.raises(
        TransformError, match=r"sample '\d[01]' has the field 'mask' and sample '\d[2-4]' of the sa"
    ):
        batches(module(drop_some, reader=reader))


def test_the_fields_of_a_tuple_cannot_be_changed(module, reader):
    made = module(crop_alike, reader=reader, batch_format="tuple")
    assert [len(batch) for batch in batches(made)] == [3, 3]
    with pytest.raises(ConfigError, match=r"batch_format='tuple' has places for .* made \['drawn'"):
        batches(module(draw, reader=reader, batch_format="tuple"))


def test_a_transform_of_a_field_that_was_dropped_is_an_error(module, reader):
    with pytest.raises(SampleError, match=r"no field 'image' to transform: .* or a sample transf"):
        batches(module(rename, reader=reader, transforms={"image": torch.Tensor.float}))
