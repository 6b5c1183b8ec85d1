"""Photographs become smaller, and what may be a map of values is refused."""

import io

import numpy as np
import pytest
from PIL import Image

from lightning_shards.dataprep.reencode import with_smaller_images
from lightning_shards.errors import SampleError

SIZE, SMALL = (48, 32), (24, 16)
ORIENTATION = 0x0112


def encoded(image, kind="PNG", **options):
    image.save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


def decoded(data):
    return Image.open(io.BytesIO(data))


def noise(*shape):
    return np.random.default_rng(0).integers(0, 255, (SIZE[1], SIZE[0], *shape), dtype=np.uint8)


PHOTO = encoded(Image.fromarray(noise(3)), "JPEG")
PNG = encoded(Image.fromarray(noise()))


@pytest.mark.parametrize(("field", "kind"), [("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP")])
def test_a_photograph_is_averaged_in_its_own_format(field, kind):
    rows, columns = np.indices((SIZE[1], SIZE[0]))
    image = Image.fromarray(np.stack([rows * 4, columns * 4, rows + columns], -1).astype(np.uint8))
    sample = {"__key__": "0", field: encoded(image, kind), "cls": b"1"}
    smaller = with_smaller_images(sample, resize=16)
    after = decoded(smaller[field])
    assert (after.size, after.format, smaller["cls"]) == (SMALL, kind, b"1")
    exact = np.asarray(image, float).reshape(16, 2, 24, 2, 3).mean(axis=(1, 3))
    assert np.abs(np.asarray(after, float) - exact).mean() < 8
    assert with_smaller_images(smaller, resize=16) == smaller


def test_an_image_is_turned_upright():
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    photo = encoded(Image.fromarray(noise(3)), "JPEG", exif=exif)
    turned = decoded(with_smaller_images({"__key__": "0", "jpg": photo}, resize=16)["jpg"])
    assert turned.size == SMALL[::-1]
    assert ORIENTATION not in turned.getexif()


@pytest.mark.parametrize(
    ("images", "name"),
    [
        ({"jpg": PHOTO, "mask.png": PNG}, "mask.png"),
        ({"jpg": PHOTO, "png": PNG}, "png"),
        ({"depth.png": PNG}, "depth.png"),
        ({"png": encoded(Image.fromarray(noise()).convert("P"))}, "png"),
        ({"png": encoded(Image.fromarray(noise().astype(np.uint16) * 200))}, "png"),
    ],
)
def test_what_may_be_a_map_of_values_is_refused(images, name):
    with pytest.raises(SampleError, match=rf"0\.{name} \(mode .* may be a map of values, which"):
        with_smaller_images({"__key__": "0"} | images, resize=16)
