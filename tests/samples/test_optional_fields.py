"""Optional fields: None or a default where a sample has no such member, by every way to a batch."""

import io
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_shards import DecodeResize, ShardDataset, SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.readers import indexed
from lightning_shards.shards.storage.local import LocalStorage

COUNTS = [4, 5, 0, 3]
LACKING = {1, 4, 6, 7, 11}
FIELDS = {"image": "png", "mask": "mask.png?", "label": "cls?", "text": "txt ; text ?"}


def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def rows(module, name):
    loader = module.loader("train")
    columns = [batch[name] for batch in loader]
    values = [row for column in columns for row in column]
    keys = [key for batch in loader for key in batch["__key__"]]
    return dict(zip(map(int, keys), values, strict=True)), [type(column) for column in columns]


@pytest.fixture
def urls(tmp_path, write_tar):
    """Samples 0 to 11, of which some have an image alone."""
    shards, numbers = [], iter(range(12))
    for shard, count in enumerate(COUNTS):
        members = []
        for number in islice(numbers, count):
            members.append((f"{number:02d}.png", png(number)))
            if number not in LACKING:
                label, text = b"%d" % number, b"text %d" % number
                others = {"mask.png": png(100 + number), "cls": label, "txt": text}
                members += [(f"{number:02d}.{suffix}", data) for suffix, data in others.items()]
        shards.append(str(write_tar(tmp_path / f"shard-{shard}.tar", members)))
    return shards


@pytest.fixture
def module(urls, make_module):
    def make(reader="indexed", split=None, **settings):
        options = {"sampling": "sequential", "remainder": "balanced", **(split or {})}
        train = SplitConfig(**{"urls": urls, "reader": reader, **options})
        given = {"fields": FIELDS, "decode": {"image": "gray", "mask": "gray"}, "batch_size": 4}
        return make_module(train, **given | settings)

    return make


def refused(*_):
    raise AssertionError("a batch is made sample by sample")


@pytest.fixture(params=["stream", "indexed", "large members", "by samples"])
def reader(request, monkeypatch):
    """Each way to a batch: large members are read batch by batch."""
    if request.param == "by samples":
        monkeypatch.setattr(indexed, "can_decode", lambda _: False)
    elif request.param == "large members":
        monkeypatch.setattr(LocalStorage, "largest_ahead", 1)
    if request.param != "by samples":  # and no batch is made so in silence
        monkeypatch.setattr(indexed.WorkerBatches, "_batch_by_samples", refused)
    return "stream" if request.param == "stream" else "indexed"


def test_a_missing_member_is_none_and_its_column_a_list(module, reader):
    labels, kinds = rows(module(reader), "label")
    assert labels == {n: None if n in LACKING else n for n in range(12)}
    assert kinds == [list] * 3
    texts, _ = rows(module(reader), "text")
    assert texts == {n: None if n in LACKING else f"text {n}" for n in range(12)}
    masks, _ = rows(module(reader), "mask")
    assert {n for n, mask in masks.items() if mask is None} == LACKING
    for number in set(range(12)) - LACKING:
        assert masks[number].equal(torch.full((1, 4, 4), 100 + number, dtype=torch.uint8))


def test_a_default_takes_the_place(module, reader):
    mask = torch.full((1, 4, 4), 255, dtype=torch.uint8)
    made = module(reader, defaults={"label": -1, "text": "", "mask": mask})
    labels, kinds = rows(made, "label")
    assert labels == {n: -1 if n in LACKING else n for n in range(12)}
    assert kinds == [torch.Tensor] * 3
    masks, kinds = rows(made, "mask")
    assert kinds == [torch.Tensor] * 3
    assert all(masks[n].equal(mask) for n in LACKING)
    assert rows(made, "text")[0][4] == ""
    own = module(reader, defaults={"label": -1}, split={"defaults": {"label": -2}})
    assert rows(own, "label")[0][1] == -2


def add_number(label):
    return label + 100


def blacken(mask):
    return mask.zero_()


blacken.deterministic = add_number.deterministic = True


def test_transforms_get_defaults_but_no_none(module, reader):
    transforms = {"label": add_number, "mask": blacken}
    labels, _ = rows(module(reader, transforms=transforms), "label")
    assert labels == {n: None if n in LACKING else n + 100 for n in range(12)}
    default = torch.ones(1, 4, 4, dtype=torch.uint8)
    made = module(reader, transforms=transforms, defaults={"label": -1, "mask": default})
    assert rows(made, "label")[0][4] == 99
    assert rows(made, "mask")[0][4].sum() == 0
    assert default.sum() == 16  # each sample gets a copy


def test_a_crop_is_not_called_without_bytes(module, reader):
    crop = {"transforms": {"mask": DecodeResize(size=2)}, "decode": {"image": "gray"}}
    masks, kinds = rows(module(reader, **crop), "mask")
    assert kinds == [list] * 3
    for number, mask in masks.items():
        assert mask is None if number in LACKING else mask.shape == (3, 2, 2)
    blank = torch.zeros(3, 2, 2, dtype=torch.uint8)
    masks, kinds = rows(module(reader, defaults={"mask": blank}, **crop), "mask")
    assert kinds == [torch.Tensor] * 3
    assert masks[4].sum() == 0 < masks[3].sum()


def fill_mask(sample):
    if sample["mask"] is None:
        sample["mask"] = torch.zeros_like(sample["image"])
    return sample


fill_mask.deterministic = True


def test_a_sample_transform_gets_none_and_may_fill_it(module, reader):
    made = module(reader, sample_transforms=[fill_mask])
    masks, kinds = rows(made, "mask")
    assert kinds == [torch.Tensor] * 3
    assert {n for n, mask in masks.items() if not mask.any()} == LACKING
    assert rows(made, "label")[0][4] is None


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


# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("image", r"defaults names 'image', and the optional fields are \['mask"),
        ("x", r"defaults names 'x'.*write \{x: 'SUFFIX\?'\} in fields"),
    ],
)
def test_a_default_of_no_optional_field_is_refused(module, name, message):
    with pytest.raises(ConfigError, match=message):
        module(defaults={name: 1})
