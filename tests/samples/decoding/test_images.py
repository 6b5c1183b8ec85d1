"""Images of any mode become uint8 pixels of one layout; `labels` keeps the numbers of a map."""

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_shards.errors import SampleError
from lightning_shards.samples import images
from lightning_shards.samples.crops import DecodeCenterCrop, DecodeResize
from lightning_shards.samples.fields import make_fields
from tests.samples.decoding.conftest import encode, png_of

HEIGHT, WIDTH = 4, 6


def gradient(mode):
    """An image whose brightness grows from left to right, in the given mode."""
    values = np.tile(np.linspace(0, 250, WIDTH, dtype=np.uint8), (HEIGHT, 1))
    return Image.fromarray(values).convert(mode)


ENCODED = {
    "gray": encode(gradient("L"), "PNG"),
    "rgb": encode(gradient("RGB"), "PNG"),
    "rgba": encode(gradient("RGBA"), "PNG"),
    "gray with alpha": encode(gradient("LA"), "PNG"),
    "palette": encode(gradient("P"), "PNG"),
    "palette with alpha": encode(gradient("P"), "PNG", transparency=0),
    "one bit": encode(gradient("1"), "PNG"),
    "cmyk": encode(gradient("CMYK"), "JPEG"),
    "jpeg": encode(gradient("RGB"), "JPEG"),
    "webp": encode(gradient("RGB"), "WEBP", lossless=True),
    "gif": encode(gradient("P"), "GIF"),
    "bmp": encode(gradient("RGB"), "BMP"),
    "tiff": encode(gradient("RGB"), "TIFF"),
    "ppm": encode(gradient("RGB"), "PPM"),
}


@pytest.mark.parametrize("kind", ENCODED)
@pytest.mark.parametrize(("decode", "channels"), [(images.decode_rgb, 3), (images.decode_gray, 1)])
def test_an_image_becomes_uint8_channels_first_as_dark_and_bright_as_it_is(kind, decode, channels):
    pixels = decode(ENCODED[kind])
    assert (pixels.dtype, tuple(pixels.shape)) == (np.uint8, (channels, HEIGHT, WIDTH))
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    columns = pixels.mean(axis=(0, 1))
    assert columns[0] < 40
    assert columns[-1] > 215
    assert 10 < columns[2] < 245 or kind == "one bit"


def test_a_pil_image_keeps_its_mode_and_is_loaded():
    image = images.decode_pil(ENCODED["palette"])
    assert (image.mode, image.size) == ("P", (WIDTH, HEIGHT))
    assert image.fp is None


@pytest.mark.parametrize(
    "data", [ENCODED["jpeg"][:-200], ENCODED["rgb"][:50]], ids=["half a jpeg", "half a png"]
)
def test_bytes_that_are_no_whole_image_are_an_error(data):
    with pytest.raises(OSError, match=r"(?i)truncated|broken"):
        images.decode_rgb(data)


def test_formats_that_run_programs_are_not_opened():
    with pytest.raises(SampleError, match="begins with b'%!PS"):
        images.decode_rgb(encode(gradient("RGB"), "EPS"))


# --- maps of classes, ids and depths --------------------------------------------------------------

IDS = [[0, 7, 24, 200], [3, 2, 1, 0]]


def of(dtype, values=IDS):
    return Image.fromarray(np.array(values, dtype))


def palette(values=IDS):
    """Indices of random colours."""
    image = Image.fromarray(np.array(values, np.uint8)).convert("P")
    image.putpalette(np.random.default_rng(0).integers(256, size=768, dtype=np.uint8).tobytes())
    return image


DEEP = {
    "16 bit png": (encode(of(np.uint16), "PNG"), np.uint16),
    "pgm up to 1000": (
        b"P5 4 2 1000\n" + np.array(IDS, ">u2").tobytes(), np.uint16,
    ),
    "32 bit tiff": (encode(of(np.int32), "TIFF"), np.int32),
    "float tiff": (encode(of(np.float32), "TIFF"), np.float32),
}  # fmt: skip
COLOURED = {
    f"palette {kind.lower()}": (encode(palette(), kind, optimize=False), np.uint8)
    for kind in ("PNG", "GIF")
}
SHORT = {
    "8 bit png": (encode(of(np.uint8), "PNG"), np.uint8),
    "8 bit jpeg": (encode(of(np.uint8, [[7] * 8] * 8), "JPEG", quality=100), np.uint8),
    "pgm up to 201": (b"P5 4 2 201\n" + np.array(IDS, np.uint8).tobytes(), np.uint8),
}
VALUES = {"8 bit jpeg": [[7] * 8] * 8}
MAPS = SHORT | COLOURED | DEEP


@pytest.mark.parametrize("kind", MAPS)
def test_the_numbers_of_a_map_are_those_of_its_file(kind):
    data, dtype = MAPS[kind]
    (field,) = make_fields({"mask": "png"}, {"mask": "labels"}, frozenset())
    values = field.decode({"__key__": "k", "__url__": "u", "png": data})
    assert values.dtype == getattr(torch, np.dtype(dtype).name)
    assert values.tolist() == [VALUES.get(kind, IDS)]


@pytest.mark.parametrize(
    ("data", "values"),
    ids=["1", "2", "4", "palette", "tiff"],
    argvalues=[
        (png_of(4, 1, 1, b"\0\xa0"), [1, 0, 1, 0]),
        (png_of(4, 1, 2, b"\0\x1b"), [0, 1, 2, 3]),
        (png_of(4, 1, 4, b"\0\x01\x2f"), [0, 1, 2, 15]),
        (encode(palette([[0, 1, 2, 3]]), "PNG", bits=2), [0, 1, 2, 3]),
        (encode(Image.fromarray(np.array([[True, False]])), "TIFF"), [1, 0]),
    ],
)
def test_numbers_of_few_bits_are_not_spread_over_eight(data, values):
    labels = images.decode_labels(data)
    assert labels.dtype == np.uint8
    assert labels.tolist() == [[values]]


PICTURES = [
    images.decode_rgb,
    images.decode_gray,
    DecodeResize(size=2).pixels,
    DecodeCenterCrop(size=1, resize=2, gray=True).pixels,
]


@pytest.mark.parametrize("decode", PICTURES, ids=["rgb", "gray", "crop", "gray crop"])
@pytest.mark.parametrize("kind", DEEP)
def test_one_channel_of_more_than_eight_bits_is_no_picture(kind, decode):
    with pytest.raises(SampleError, match=r"more than 8 bits .* as 'labels'"):
        decode(DEEP[kind][0])


@pytest.mark.parametrize("kind", COLOURED)
def test_the_brightness_of_a_palette_stands_for_no_class(kind):
    data = COLOURED[kind][0]
    for decode in (images.decode_gray, DecodeResize(size=2, gray=True).pixels):
        with pytest.raises(SampleError, match=r"indices of a palette .* 'labels', or the colours"):
            decode(data)
    assert images.decode_rgb(data).shape == (3, 2, 4)


def test_an_image_of_colours_is_no_map():
    with pytest.raises(SampleError, match=r"one channel, and this image has 3 .*'rgb'"):
        images.decode_labels(encode(of(np.uint8).convert("RGB"), "PNG"))
