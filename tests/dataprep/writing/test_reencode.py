"""Images that become smaller: photographs are averaged, and maps keep their values."""

import io
import struct
import zlib

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


def noise(*shape, high=255, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, high, (SIZE[1], SIZE[0], *shape), dtype=dtype)


def png_of(rows, depth, kind, *more):
    """A PNG of rows of bytes, which Pillow could not write, by its bits and its type of colours."""
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", *SIZE, depth, kind, 0, 0, 0)),
        *more,
        (b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


def palette_image():
    """Classes 0 to 3 and 255, which is none of the four colours of the palette."""
    classes = np.where(noise() > 250, 255, noise(high=4)).astype(np.uint8)
    return png_of(classes, 8, 3, (b"PLTE", bytes([0, 0, 0, 128, 0, 0, 0, 128, 0, 0, 0, 128])))


def deep_image(channels):
    """A PNG of 16 bits a channel."""
    kind = {2: 4, 3: 2, 4: 6}[channels]
    return png_of(noise(channels, high=60_000, dtype=np.uint16), 16, kind)


PHOTO = encoded(Image.fromarray(noise(3)), "JPEG")
MAPS = {
    "P": (decoded(palette_image()), "PNG"),
    "L": (Image.fromarray(noise(high=151)), "PNG"),
    "1": (Image.fromarray(noise() > 99), "PNG"),
    "I;16": (Image.fromarray(noise(high=60_000, dtype=np.uint16)), "PNG"),
    "RGB": (Image.fromarray(noise(3)), "PNG"),
    "RGBA": (Image.fromarray(noise(4)), "PNG"),
    "WebP": (Image.fromarray(noise(4)), "WEBP"),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_map_gets_the_size_of_its_image_and_keeps_its_values(name):
    image, kind = MAPS[name]
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    field = f"mask.{kind.lower()}"
    data = palette_image() if name == "P" else encoded(image, kind, **options)
    sample = {"__key__": "0", "jpg": PHOTO, field: data}
    smaller = with_smaller_images(sample, resize=16)
    before, after = decoded(sample[field]), decoded(smaller[field])
    assert decoded(smaller["jpg"]).size == after.size == SMALL
    assert after.mode == before.mode
    middles = np.array(before)[1::2, 1::2]  # of two pixels, the one that the middle falls on
    assert (np.array(after) == middles).all()
    if name == "P":
        assert after.getpalette()[:12] == before.getpalette()[:12]


def test_an_image_is_turned_upright_unless_a_map_would_not_fit_it_then():
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    photo = encoded(Image.fromarray(noise(3)), "JPEG", exif=exif)
    alone = decoded(with_smaller_images({"__key__": "0", "jpg": photo}, resize=16)["jpg"])
    assert alone.size == SMALL[::-1]
    assert ORIENTATION not in alone.getexif()
    sample = {"__key__": "0", "jpg": photo, "mask.png": encoded(Image.fromarray(noise(high=5)))}
    with pytest.raises(SampleError, match=r"0\.jpg cannot be resized .*EXIF orientation"):
        with_smaller_images(sample, resize=16)


@pytest.mark.parametrize("name", ["P", "1", "I;16"])
def test_what_could_be_a_map_by_its_pixels_is_refused(name):
    sample = {"__key__": "0", "png": encoded(MAPS[name][0])}
    message = f"0.png cannot be resized .* of the mode {name}; give a map of values a field with a"
    with pytest.raises(SampleError, match=message):
        with_smaller_images(sample, resize=16)


def test_one_of_two_images_is_refused():
    sample = {"__key__": "0", "jpg": PHOTO, "png": encoded(MAPS["L"][0])}
    with pytest.raises(SampleError, match="it stands beside other images, jpg, png; gi"):
        with_smaller_images(sample, resize=16)


@pytest.mark.parametrize(("field", "channels"), [("png", 2), ("png", 4), ("flow.png", 3)])
def test_colours_of_16_bits_are_refused(field, channels):
    with pytest.raises(SampleError, match="channels have 16 bits, of which 8 would be lost; "):
        with_smaller_images({"__key__": "0", field: deep_image(channels)}, resize=16)
