"""Images of any mode become uint8 pixels of one layout."""

import numpy as np
import pytest
from PIL import Image

from lightning_shards.errors import SampleError
from lightning_shards.samples import images
from tests.samples.decoding.conftest import encode

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
