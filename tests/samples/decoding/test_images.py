"""Images of any mode become uint8 pixels of one layout."""

import io
import re
import struct

import numpy as np
import pytest
from PIL import Image

from lightning_shards.errors import SampleError
from lightning_shards.samples import images
from lightning_shards.samples.crops import DecodeResize
from lightning_shards.samples.fields import make_fields

HEIGHT, WIDTH = 4, 6


def encode(image, file_format="PNG", **options):
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def gradient(mode):
    """An image whose brightness grows from left to right, in the given mode."""
    values = np.tile(np.linspace(0, 250, WIDTH, dtype=np.uint8), (HEIGHT, 1))
    if mode == "I;16":
        return Image.fromarray(values.astype(np.uint16) * 257)
    return Image.fromarray(values).convert(mode)


def grays(white):
    """The same brightness as numbers up to `white`."""
    return np.tile(np.linspace(0, white, WIDTH, dtype=np.uint16), (HEIGHT, 1))


def packed_12_bits(values):
    pairs = values.reshape(-1, 2).tolist()
    return b"".join((first << 12 | second).to_bytes(3, "big") for first, second in pairs)


def tiff_of(pixels, bits, sample_format=1, white_is_zero=False):
    """A gray TIFF of these bytes, whose numbers are unsigned, or signed in format 2."""
    tags = {256: WIDTH, 257: HEIGHT, 258: bits, 259: 1, 262: 1 - white_is_zero, 273: 8}
    tags |= {277: 1, 278: HEIGHT, 279: len(pixels), 339: sample_format}
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    head = struct.pack("<2sHI", b"II", 42, 8 + len(pixels)) + pixels
    return head + struct.pack("<H", len(tags)) + directory + bytes(4)


ENCODED = {
    "gray": encode(gradient("L")),
    "rgb": encode(gradient("RGB")),
    "rgba": encode(gradient("RGBA")),
    "gray with alpha": encode(gradient("LA")),
    "palette": encode(gradient("P")),
    "palette with alpha": encode(gradient("P"), transparency=0),
    "one bit": encode(gradient("1")),
    "16 bit": encode(gradient("I;16")),
    "16 bit tiff": encode(gradient("I;16"), "TIFF"),
    "16 bit pgm": encode(gradient("I;16"), "PPM"),
    "10 bit pgm": b"P5 %d %d 1000\n" % (WIDTH, HEIGHT) + grays(1000).astype(">u2").tobytes(),
    "16 bit pgm of texts": b"P2 %d %d 65535\n" % (WIDTH, HEIGHT)
    + " ".join(map(str, grays(65535).ravel())).encode(),
    "12 bit tiff": tiff_of(packed_12_bits(grays(4095)), bits=12),
    "8 bit tiff, white is 0": tiff_of(
        (255 - grays(255)).astype(np.uint8).tobytes(), bits=8, white_is_zero=True
    ),
    "16 bit tiff, white is 0": tiff_of(
        (65535 - grays(65535)).tobytes(), bits=16, white_is_zero=True
    ),
    "cmyk": encode(gradient("CMYK"), "JPEG"),
    "jpeg": encode(gradient("RGB"), "JPEG"),
    "webp": encode(gradient("RGB"), "WEBP", lossless=True),
    "gif": encode(gradient("P"), "GIF"),
    "bmp": encode(gradient("RGB"), "BMP"),
    "tiff": encode(gradient("RGB"), "TIFF"),
    "ppm": encode(gradient("RGB"), "PPM"),
}


@pytest.mark.parametrize("kind", ENCODED)
@pytest.mark.parametrize(
    ("decode", "channels"), [(images.decode_rgb, 3), (images.decode_gray, 1)], ids=["rgb", "gray"]
)
def test_an_image_becomes_uint8_channels_first(kind, decode, channels):
    pixels = decode(ENCODED[kind])
    assert (pixels.dtype, tuple(pixels.shape)) == (np.uint8, (channels, HEIGHT, WIDTH))
    assert pixels.flags.c_contiguous


@pytest.mark.parametrize("kind", ENCODED)
@pytest.mark.parametrize("decode", [images.decode_rgb, images.decode_gray], ids=["rgb", "gray"])
def test_dark_stays_dark_and_bright_stays_bright(kind, decode):
    """A 16-bit image that is clipped instead of scaled is white all over."""
    pixels = decode(ENCODED[kind]).mean(axis=(0, 1))
    assert pixels[0] < 40
    assert pixels[-1] > 215
    assert 10 < pixels[2] < 245 or kind == "one bit"


@pytest.mark.parametrize("kind", [kind for kind in ENCODED if "bit " in kind])
def test_a_crop_shows_the_upper_bits_too(kind):
    pixels = DecodeResize(size=HEIGHT, orient=True).pixels(ENCODED[kind]).mean(axis=(0, 1))
    assert pixels[0] < 40
    assert pixels[-1] > 215
    assert 50 < pixels[1] < 150


@pytest.mark.parametrize("kind", ["I", "F"])
@pytest.mark.parametrize("orient", [False, True])
def test_pixels_without_known_upper_bits_are_refused(kind, orient):
    dtype = {"I": np.int32, "F": np.float32}[kind]
    data = encode(Image.fromarray(np.ones((HEIGHT, WIDTH), dtype)), "TIFF")
    for decode in (images.decode_rgb, DecodeResize(size=2, orient=orient).pixels):
        with pytest.raises(ValueError, match=rf"mode '{kind}'.*decode the field as 'pil'"):
            decode(data)
    assert images.decode_pil(data).mode == kind


def test_signed_numbers_of_16_bits_are_refused():
    data = tiff_of(grays(30_000).tobytes(), bits=16, sample_format=2)
    assert images.decode_pil(data).mode == "I"
    with pytest.raises(ValueError, match="mode 'I'"):
        images.decode_rgb(data)


@pytest.mark.parametrize("orient", [False, True])
def test_signed_numbers_of_8_bits_are_refused(orient):
    data = tiff_of(grays(100).astype(np.int8).tobytes(), bits=8, sample_format=2)
    for decode in (images.decode_gray, DecodeResize(size=2, orient=orient).pixels):
        with pytest.raises(ValueError, match=r"signed.*mode 'L'"):
            decode(data)


def test_rows_and_columns_and_channels_are_not_mixed_up():
    array = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    array[1, 2] = (10, 20, 30)
    pixels = images.decode_rgb(encode(Image.fromarray(array)))
    assert pixels[:, 1, 2].tolist() == [10, 20, 30]
    assert np.count_nonzero(pixels) == 3


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


NO_IMAGES = {
    "nothing": b"",
    "text": b"no image",
    "html": b"\n <!DOCTYPE HTML><html>",
    "a cut jpeg": b"\xff\xd8\xff" + bytes(9),
}


@pytest.mark.parametrize("backend", ["pillow", "turbo"])
@pytest.mark.parametrize("data", NO_IMAGES.values(), ids=NO_IMAGES)
def test_bytes_that_are_no_image_are_shown_in_the_error(data, backend):
    members = {"__key__": "k", "__url__": "u.tar", "png": data}
    (field,) = make_fields({"image": "png"}, {}, frozenset())
    message = rf"no image of a known format, it begins with {re.escape(repr(data))};"
    with pytest.raises(
        SampleError, match=rf"'k' of u.tar: member 'png' of field 'image': .*{message}"
    ):
        field.decode(members)
    with pytest.raises(SampleError, match=message):
        DecodeResize(size=4, backend=backend)(data)


def test_formats_that_run_programs_are_not_opened():
    with pytest.raises(SampleError, match="begins with b'%!PS"):
        images.decode_rgb(encode(gradient("RGB"), "EPS"))
