"""A batch whose images would fill the memory is refused, with the name of the field."""

import pytest

from lightning_shards import SplitConfig
from lightning_shards.errors import SampleError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Place
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.samples import batch_limits
from lightning_shards.samples.decoding import images
from lightning_shards.samples.decoding.decoders import DECODERS
from lightning_shards.shards.private_files import CacheFolder

FIELDS = {"image": "png", "label": "cls"}
PIXELS = 16  # of each image


def small(image):
    return image[:, :1, :1]


small.deterministic = True


def source_of(make_source, urls, tmp_path, reader, decode, transforms, max_bad):
    source = make_source(
        urls, sampling="sequential", batch_size=4, fields=FIELDS, decode={"image": decode},
        transforms=transforms, max_bad=max_bad,
    )  # fmt: skip
    if reader == "stream":
        return source
    return IndexedSource(
        source.index, source.epochs, SampleOrder(source.index.counts, 0, "sequential"), 0,
        source.fields, transforms,
        cache=CacheFolder(tmp_path / "cache"), max_bad=max_bad,
    )  # fmt: skip


@pytest.fixture(params=["stream", "indexed"])
def make(request, make_source, pack_shards, tmp_path):
    if request.param == "stream":
        pytest.importorskip("torch", reason="webdataset needs torch to read a stream")
    urls = pack_shards([6, 6])

    def source(decode="rgb", transforms=None, max_bad=None):
        made = source_of(
            make_source, urls, tmp_path, request.param, decode, transforms or {}, max_bad
        )
        return made.batches(Place(), Cursor())

    return source


@pytest.mark.parametrize("max_bad", [None, 100], ids=["raise", "substitute"])
@pytest.mark.parametrize("decode", ["rgb", "gray", "pil"])
def test_a_batch_of_too_many_pixels_names_its_field(make, monkeypatch, decode, max_bad):
    monkeypatch.setattr(batch_limits, "MAX_BATCH_PIXELS", 4 * PIXELS - 1)
    with pytest.raises(SampleError, match=r"field 'image'.* 63 pixels.*batch_size"):
        next(make(decode, max_bad=max_bad))


def test_a_batch_of_just_as_many_pixels_is_made(make, monkeypatch):
    monkeypatch.setattr(batch_limits, "MAX_BATCH_PIXELS", 4 * PIXELS)
    batches = make()
    assert [len(next(batches).batch["label"]) for _ in range(3)] == [4, 4, 4]


@pytest.mark.parametrize("reader", ["indexed", "stream"])
@pytest.mark.parametrize("collate_fn", [None, list])
@pytest.mark.parametrize("suffix", ["png", "png?"])
def test_no_more_images_are_decoded_than_fit(
    pack_shards, make_module, monkeypatch, reader, collate_fn, suffix
):
    decoded = []

    def decode(data):
        decoded.append(data)
        return images.decode_rgb(data)

    monkeypatch.setitem(DECODERS, "rgb", decode)
    module = make_module(
        SplitConfig(pack_shards([30]), sampling="sequential", reader=reader),
        fields={"image": suffix},
        collate_fn=collate_fn,
        batch_size=30,
    )
    loader = module.loader("train")
    decoded.clear()  # of the sample that tells whether there is such a field
    monkeypatch.setattr(batch_limits, "MAX_BATCH_PIXELS", 3 * PIXELS - 1)
    with pytest.raises(SampleError, match="field 'image'"):
        next(iter(loader))
    assert len(decoded) <= 2 * 3  # by fields, and again by samples


def test_what_a_transform_makes_small_is_not_counted(make, monkeypatch):
    monkeypatch.setattr(batch_limits, "MAX_BATCH_PIXELS", 4 * PIXELS - 1)
    assert next(make(transforms={"image": small})).batch["image"].shape == (4, 3, 1, 1)
