"""Optional fields: None or a default where a sample has no such member, by every way to a batch."""

from pathlib import Path

import pytest
import torch

from lightning_shards import (
    DecodeResize,
    ShardDataset,
)
from lightning_shards.errors import ConfigError, ShardError
from tests.samples.optional.lacking_shards import FIELDS, LACKING, png, rows


def test_a_missing_member_is_none_and_its_column_a_list(make_module, reader):
    labels, kinds = rows(make_module(reader), "label")
    assert labels == {n: None if n in LACKING else n for n in range(12)}
    assert kinds == [list] * 3
    texts, _ = rows(make_module(reader), "text")
    assert texts == {n: None if n in LACKING else f"text {n}" for n in range(12)}
    masks, _ = rows(make_module(reader), "mask")
    assert {n for n, mask in masks.items() if mask is None} == LACKING
    for number in set(range(12)) - LACKING:
        assert masks[number].equal(torch.full((1, 4, 4), 100 + number, dtype=torch.uint8))


def test_a_default_takes_the_place(make_module, reader):
    mask = torch.full((1, 4, 4), 255, dtype=torch.uint8)
    module = make_module(reader, defaults={"label": -1, "text": "", "mask": mask})
    labels, kinds = rows(module, "label")
    assert labels == {n: -1 if n in LACKING else n for n in range(12)}
    assert kinds == [torch.Tensor] * 3
    masks, kinds = rows(module, "mask")
    assert kinds == [torch.Tensor] * 3
    assert all(masks[n].equal(mask) for n in LACKING)
    assert rows(module, "text")[0][4] == ""
    own = make_module(reader, defaults={"label": -1}, split={"defaults": {"label": -2}})
    assert rows(own, "label")[0][1] == -2


def add_number(label):
    return label + 100


def blacken(mask):
    return mask.zero_()


blacken.deterministic = add_number.deterministic = True


def test_transforms_get_defaults_but_no_none(make_module, reader):
    transforms = {"label": add_number, "mask": blacken}
    labels, _ = rows(make_module(reader, transforms=transforms), "label")
    assert labels == {n: None if n in LACKING else n + 100 for n in range(12)}
    default = torch.ones(1, 4, 4, dtype=torch.uint8)
    module = make_module(reader, transforms=transforms, defaults={"label": -1, "mask": default})
    assert rows(module, "label")[0][4] == 99
    assert rows(module, "mask")[0][4].sum() == 0
    assert default.sum() == 16  # each sample gets a copy


def test_a_crop_is_not_called_without_bytes(make_module, reader):
    crop = {"transforms": {"mask": DecodeResize(size=2)}, "decode": {"image": "gray"}}
    masks, kinds = rows(make_module(reader, **crop), "mask")
    assert kinds == [list] * 3
    for number, mask in masks.items():
        assert mask is None if number in LACKING else mask.shape == (3, 2, 2)
    blank = torch.zeros(3, 2, 2, dtype=torch.uint8)
    masks, kinds = rows(make_module(reader, defaults={"mask": blank}, **crop), "mask")
    assert kinds == [torch.Tensor] * 3
    assert masks[4].sum() == 0 < masks[3].sum()


def fill_mask(sample):
    if sample["mask"] is None:
        sample["mask"] = torch.zeros_like(sample["image"])
    return sample


fill_mask.deterministic, fill_mask.takes_fields = True, ("image", "mask")


def test_a_sample_transform_gets_none_and_may_fill_it(make_module, reader):
    module = make_module(reader, sample_transforms=[fill_mask])
    masks, kinds = rows(module, "mask")
    assert kinds == [torch.Tensor] * 3
    assert {n for n, mask in masks.items() if not mask.any()} == LACKING
    assert rows(module, "label")[0][4] is None


def test_the_map_dataset_knows_them(urls, tmp_path):
    dataset = ShardDataset(
        urls,
        fields=FIELDS,
        defaults={"label": -1},
        transforms={"mask": DecodeResize(size=2)},
        decode={"mask": "raw"},
        cache_dir=str(tmp_path),
    )
    assert (dataset[4]["label"], dataset[4]["mask"], dataset[5]["label"]) == (-1, None, 5)
    assert dataset[5]["mask"].shape == (3, 2, 2)


@pytest.mark.parametrize("name", ["stream", "indexed"])
def test_a_damaged_member_is_not_taken_for_a_missing_one(make_module, urls, name):
    list(make_module(name).loader("train"))
    shard = Path(urls[0])
    data = bytearray(shard.read_bytes())
    data[data.index(png(103)) + 20] ^= 255
    shard.write_bytes(data)
    with pytest.raises(ShardError):
        list(make_module(name).loader("train"))


# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"defaults": {"image": 1}},
            r"defaults names 'image', and the optional fields are \['mask",
        ),
        ({"defaults": {"x": 1}}, r"defaults names 'x'.*write \{x: 'SUFFIX\?'\} in fields"),
        (
            {"fields": {"image": "jpg?;png"}, "decode": {}},
            r"suffixes \['jpg\?', 'png'\].*a `\?` only after all",
        ),
        ({"fields": {"image": "?"}, "decode": {}}, r"comes from suffixes \[''\]"),
    ],
)
def test_what_cannot_be_meant_is_refused(make_module, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_module(**settings)
