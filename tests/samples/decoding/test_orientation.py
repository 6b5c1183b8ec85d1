"""Images are turned upright by their tags where that is asked for, once, by both backends."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from lightning_shards.samples import images
from lightning_shards.samples.crops import (
    DecodeResize,
)
from tests.samples.decoding.conftest import HEIGHT, WIDTH, difference, encode, reference

ORIENTATION = 0x0112


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_upright_where_that_is_asked_for(photo, backend, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encode(photo, quality=95, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    whole = (0, 0, *upright.size)
    oriented = DecodeResize(size=40, backend=backend, orient=True)(data)
    assert difference(oriented, reference(upright, whole, 40)) < 7
    stored = DecodeResize(size=40, backend=backend)(data)
    assert difference(stored, reference(photo, (0, 0, WIDTH, HEIGHT), 40)) < 7


def app1(data, content):
    """A JPEG with this content as its first segment APP1."""
    return data[:2] + b"\xff\xe1" + (2 + len(content)).to_bytes(2, "big") + content + data[2:]


HEADER = b"Exif\0\0" + b"II*\0\x08\0\0\0"
TURNED = b"\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"
DAMAGED_TAGS = {
    "no tags": b"Exif\0\0garbage",
    "a cut header": b"Exif\0\0II*\0",
    "nothing": b"Exif\0\0",
    "no number": HEADER + b"\x01\0\x12\x01\x02\0\x04\0\0\0six\0" + bytes(4),
    "out of range": HEADER + b"\x01\0" + TURNED.replace(b"\x06", b"\x09") + bytes(4),
}


@pytest.mark.parametrize("content", DAMAGED_TAGS.values(), ids=DAMAGED_TAGS)
def test_tags_that_cannot_be_read_turn_nothing(photo, backend, content):
    data = encode(photo, quality=95)
    shown = DecodeResize(size=40, backend=backend, orient=True)(app1(data, content))
    assert shown.equal(DecodeResize(size=40, backend=backend)(data))


@pytest.mark.parametrize("orientation", [None, 1, 3, 6])
def test_pillow_decodes_an_oriented_image_at_a_fraction_of_its_size(photo, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation or 1
    data = encode(photo, exif=exif) if orientation else encode(photo)
    image = images._PillowImage(data, "RGB", is_oriented=True)
    image.cut(images.Box(0, 0, image.width, image.height), np.empty((30, 30, 3), np.uint8))
    assert image._image.size == (WIDTH // 8, HEIGHT // 8)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_images_of_other_kinds_are_turned_once(photo, backend, kind, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encode(photo, kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    shown = DecodeResize(size=40, backend=backend, orient=True)(data)
    assert difference(shown, reference(upright, (0, 0, *upright.size), 40)) < 1
