"""Optional fields: None or a default where a sample has no such member, by every way to a batch."""

import io
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from webdataset.writer import TarWriter

from lightning_shards import (
    DecodeResize,
    LoaderConfig,
    ShardDataModule,
    ShardDataset,
    SplitConfig,
)
from lightning_shards.errors import ConfigError, MissingFieldError, ShardError
from lightning_shards.plan.place import Place
from lightning_shards.readers import indexed, open_shards
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.making import batches
from lightning_shards.samples.optional_fields import Default
from lightning_shards.shards.storage.local import LocalStorage

COUNTS = [4, 5, 0, 3]
LACKING = {1, 4, 6, 7, 11}
FIELDS = {"image": "png", "mask": "mask.png?", "label": "cls?", "text": "txt ; text ?"}


def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def urls(tmp_path):
    """Samples 0 to 11, of which some have an image alone."""
    shards, number = [], 0
    for shard, count in enumerate(COUNTS):
        shards.append(str(tmp_path / f"shard-{shard}.tar"))
        with TarWriter(shards[-1]) as writer:
            for _ in range(count):
                sample = {"__key__": f"{number:02d}", "png": png(number)}
                if number not in LACKING:
                    mask, text = png(100 + number), f"text {number}"
                    sample |= {"mask.png": mask, "cls": str(number), "txt": text}
                writer.write(sample)
                number += 1
    return shards


@pytest.fixture
def make_module(urls, tmp_path):
    def make(reader="indexed", split=None, **settings):
        options = {"sampling": "sequential", "remainder": "balanced", **(split or {})}
        return ShardDataModule(
            train=SplitConfig(**{"urls": urls, "reader": reader, **options}),
            **{
                "fields": FIELDS,
                "decode": {"image": "gray", "mask": "gray"},
                "batch_size": 4,
                "num_workers": 0,
                "loader": LoaderConfig(cache_dir=str(tmp_path / "cache")),
                **settings,
            },
        )

    return make


def refused(*_):
    raise AssertionError("a batch is made sample by sample")


WAYS = ["stream", "indexed", "large members", "by samples"]


@pytest.fixture(params=WAYS)
def reader(request, monkeypatch):
    """Each way to a batch: large members are read one by one."""
    if request.param == "by samples":
        monkeypatch.setattr(indexed, "can_decode", lambda _: False)
    elif request.param == "large members":
        monkeypatch.setattr(LocalStorage, "largest_ahead", 1)
    if request.param != "by samples":  # and no batch is made so in silence
        monkeypatch.setattr(batches, "batch_by_samples", refused)
    return "stream" if request.param == "stream" else "indexed"


def rows(module, name):
    loader = module.loader("train")
    columns = [batch[name] for batch in loader]
    values = [row for column in columns for row in column]
    keys = [key for batch in loader for key in batch["__key__"]]
    return dict(zip(map(int, keys), values, strict=True)), [type(column) for column in columns]


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


def test_a_column_without_a_missing_value_is_a_tensor(make_module, reader):
    module = make_module(reader, batch_size=1)
    for batch in module.loader("train"):
        is_there = int(batch["__key__"][0]) not in LACKING
        assert torch.is_tensor(batch["mask"]) == torch.is_tensor(batch["label"]) == is_there


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


MASKS = {
    "array": np.full((1, 4, 4), 255, np.uint8),
    "floats": torch.full((1, 4, 4), 255.0),
    "list": [[[255] * 4] * 4],
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_default_of_an_image_of_another_type_makes_tensors(make_module, reader, kind, batch_size):
    module = make_module(reader, defaults={"mask": MASKS[kind]}, batch_size=batch_size)
    masks, kinds = rows(module, "mask")
    assert set(kinds) == {torch.Tensor}
    assert {mask.dtype for mask in masks.values()} == {torch.uint8}
    assert {n for n, mask in masks.items() if mask.min() == 255} == LACKING


def all_of_one_type(mask):
    assert isinstance(mask, torch.Tensor)
    return mask


def all_arrays(mask):
    assert isinstance(mask, np.ndarray)
    return mask


all_of_one_type.deterministic = all_arrays.deterministic = all_arrays.takes_arrays = True


@pytest.mark.parametrize("transform", [all_of_one_type, all_arrays])
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_transform_gets_a_default_as_it_gets_pixels(make_module, reader, transform, kind):
    mask = MASKS["array"] if kind == "array" else torch.as_tensor(MASKS["array"])
    module = make_module(reader, defaults={"mask": mask}, transforms={"mask": transform})
    assert set(rows(module, "mask")[1]) == {torch.Tensor}


def test_a_crop_and_a_default_that_is_an_array_make_tensors(make_module, reader):
    blank = np.zeros((3, 2, 2), np.uint8)
    crop = {"transforms": {"mask": DecodeResize(size=2)}, "decode": {"image": "gray"}}
    masks, kinds = rows(make_module(reader, defaults={"mask": blank}, **crop), "mask")
    assert kinds == [torch.Tensor] * 3
    assert masks[4].sum() == 0 < masks[3].sum()


TYPED = {
    "int": (b"7", 2.0, torch.int64),
    "json_float64": (b"2.5", 0, torch.float64),
    "json_float32": (b"[2.5, 0.1]", [0, 0.1], torch.float32),
    "json_int64": (b"[2, 3]", torch.tensor([1.0, 2.0]), torch.int64),
    "float32": (np.ones(2, np.float32).tobytes(), [0, 0.1], torch.float32),
    "uint8": (bytes(2), np.array([1.0, 255.0]), torch.uint8),
}


@pytest.fixture
def make_valued(make_module, tmp_path):
    """Makes modules of samples 0 to 5, of which the later ones have a value."""

    def make(reader, values, decoder, default, **settings):
        with TarWriter(str(tmp_path / "valued.tar")) as writer:
            for number in range(6):
                value = {"value": values[number - 3]} if number > 2 else {}
                writer.write({"__key__": f"{number:02d}", "cls": str(number)} | value)
        return make_module(
            reader,
            split={"urls": str(tmp_path / "valued.tar"), "sampling": "sequential"},
            fields={"label": "cls", "value": "value?"},
            decode={"value": decoder},
            defaults={"value": default},
            **settings,
        )

    return make


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "default", [[1.5, 2.5], np.array([1.5, 2.5]), torch.tensor([1.5, 2.5]).double()]
)
@pytest.mark.parametrize("batch_size", [2, 3])
def test_a_default_of_npy_is_an_array_like_the_others(make_valued, reader, default, batch_size):
    data = npy(np.array([3.5, 4.5]))
    module = make_valued(reader, [data] * 3, "npy", default, batch_size=batch_size)
    values = [batch["value"] for batch in module.loader("train")]
    assert {(type(value), value.dtype) for value in values} == {(torch.Tensor, torch.float64)}
    assert torch.cat(values).tolist() == [[1.5, 2.5]] * 3 + [[3.5, 4.5]] * 3


@pytest.mark.parametrize("decoder", TYPED)
@pytest.mark.parametrize("batch_size", [2, 3])
def test_a_default_has_the_type_of_the_values(make_valued, reader, decoder, batch_size):
    """Batches without a value, with values alone, and (of two samples) with either."""
    data, default, dtype = TYPED[decoder]
    module = make_valued(reader, [data] * 3, decoder, default, batch_size=batch_size)
    values = [batch["value"] for batch in module.loader("train")]
    assert [value.dtype for value in values] == [dtype] * (6 // batch_size)
    assert values[0][0].tolist() == torch.as_tensor(default).to(dtype).tolist()


@pytest.mark.parametrize(
    ("decoder", "default", "values"),
    [
        ("int", 0.5, "int64;"),
        ("int", float("nan"), "int64;"),
        ("int", 2**63, "int64;"),
        ("int", "none", "int64;"),
        ("int", [1], "int64;"),
        ("uint8", [256], "lists of uint8"),
        ("uint8", 0, "lists of uint8"),
        ("float32", [[1.0], [2.0, 3.0]], "lists of float32"),
        ("float16", [1e9], "lists of float16"),
        ("rgb", 0, r"uint8 of shape \(channels, height, width\);"),
        ("json_float64", 2**53 + 1, "float64 or lists of them"),
    ],
)
def test_a_default_that_would_lose_something_is_refused(make_valued, decoder, default, values):
    message = f"defaults gives .* for 'value', whose values are {values}.*leave it out"
    with pytest.raises(ConfigError, match=message):
        make_valued("indexed", [b""] * 3, decoder, default)


@pytest.mark.parametrize(("default", "text"), [(0, b"2.5"), (0.0, b"2"), (0, b"true")])
@pytest.mark.parametrize("batch_size", [2, 3])
@pytest.mark.parametrize("reader", ["stream", "indexed"])
def test_numbers_of_json_must_have_the_type_of_the_default(
    make_valued, reader, default, text, batch_size
):
    module = make_valued(reader, [text] * 3, "json", default, batch_size=batch_size)
    with pytest.raises(ConfigError, match=r"sample '0\d' of .*the default of 'value', 0.*alike"):
        list(module.loader("train"))


def test_other_values_of_json_and_transforms_may_have_any_type(make_valued, reader):
    module = make_valued(reader, [b"2.5", b"2", b"true"], "json", 0, transforms={"value": number})
    assert rows(module, "value")[0] == {0: 0, 1: 0, 2: 0, 3: 2.5, 4: 2, 5: 1}
    module = make_valued(reader, [b"{}", b"2", b"null"], "json", 0, batch_size=6)
    assert rows(module, "value")[0] == {0: 0, 1: 0, 2: 0, 3: {}, 4: 2, 5: None}


def number(value):
    return float(value)


number.deterministic = True


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


def test_members_with_gaps_are_not_read_sample_by_sample(make_module, monkeypatch):
    loader = make_module().loader("train")  # looks at a first sample
    made = []
    batch = BatchReader.batch

    def counted(self, number):
        made.append(batch(self, number))
        return made[-1]

    monkeypatch.setattr(BatchReader, "batch", counted)
    assert len(list(loader)) == len(made) == 3


# --- a field that all samples lack ----------------------------------------------------------------


@pytest.mark.parametrize("reader_name", ["stream", "indexed"])
def test_a_field_that_all_samples_lack_is_an_error_before_the_fit(
    make_module, urls, reader_name, caplog
):
    fields = {"image": "png", "seg": "seg.png?"}
    split = {"urls": urls[:1]} if reader_name == "stream" else {}
    module = make_module(reader_name, fields=fields, decode={})
    if split:
        module.splits["train"] = SplitConfig(urls[:1], reader="stream", sampling="sequential")
    with pytest.raises(
        MissingFieldError, match=r"optional field 'seg' is in no sample: .* have no "
    ):
        module.source("train").first_sample(Place())
    assert "optional" not in caplog.text


@pytest.mark.parametrize("name", ["stream", "indexed"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_a_trainer_it_is_an_error_of_the_loader(make_module, urls, name, num_workers):
    module = make_module(
        name,
        {"urls": urls[:1]},
        fields={"image": "png", "seg": "seg.png?"},
        decode={},
        num_workers=num_workers,
    )
    with pytest.raises(MissingFieldError, match="optional field 'seg' is in no sample"):
        module.loader("train")


def test_a_stream_of_several_shards_warns(make_module, caplog):
    fields = {"image": "png", "seg": "seg.png?"}
    with caplog.at_level(logging.WARNING):
        make_module("stream", fields=fields, decode={}).source("train").first_sample(Place())
    assert "the first 4 samples of" in caplog.text
    assert "if the others have none" in caplog.text


def test_of_many_shards_a_few_tables_are_looked_at(make_module, monkeypatch, caplog):
    monkeypatch.setattr(open_shards, "_SHARDS_LOOKED_AT", 2)
    module = make_module(fields={"image": "png", "seg": "seg.png?"}, decode={})
    with caplog.at_level(logging.WARNING):
        module.source("train").first_sample(Place())
    assert "the tables of 2 of 3 shards have no member with one of ['seg.png']" in caplog.text


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
            r"comes from 'jpg\?;png': a `\?` stands once, after al",
        ),
        ({"fields": {"image": "?"}, "decode": {}}, r"comes from suffixes \[''\]"),
    ],
)
def test_what_cannot_be_meant_is_refused(make_module, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_module(**settings)


def test_defaults_are_compared_by_their_bytes():
    assert Default(torch.zeros(3)) == Default(torch.zeros(3))
    assert Default(torch.zeros(3)) != Default(torch.ones(3))
    assert Default(None) != Default(0)
    assert hash(Default([])) == hash(Default({}))


def test_a_configuration_gives_them(urls):
    settings = {"train": {"urls": urls}, "fields": {"label": "cls?"}, "defaults": {"label": -1}}
    assert ShardDataModule.from_config(settings).defaults == {"label": -1}
