"""Rows below a part are left out of a JPEG, and its pixels stay the same to the bit."""

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image

from lightning_shards.samples import images
from lightning_shards.samples.crops import DecodeRandomResizedCrop
from lightning_shards.samples.images import Box
from tests.samples.decoding import conftest as pillow

PICTURE = load_sample_image("china.jpg")[100:356, 100:400]
PHOTO = Image.fromarray(PICTURE[:192, :256])
TOP = Box(0, 0, 64, 32)
ALL = b"\0"  # all rows are decoded of a JPEG that does not end in its last marker
SAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]


def encode(width=256, height=192, sampling="420", quality=90):
    pixels = np.ascontiguousarray(PICTURE[:height, :width])
    if sampling == "Gray":
        pixels = np.ascontiguousarray(pixels[..., :1])
    space = "gray" if sampling == "Gray" else "rgb"
    return simplejpeg.encode_jpeg(pixels, quality, space, sampling)


def shown(data, box=TOP, size=32, is_gray=False):
    """What turbo shows; where it leaves an image to Pillow, the part is asked for again."""
    asked, part = [], np.zeros((size, size) if is_gray else (size, size, 3), np.uint8)

    def box_of(*sides):
        asked.append(sides)
        return box

    images.show_part(data, box_of, part, backend="turbo")
    return part if len(asked) == 1 else None


def crop(data):
    """A part of the upper half."""
    transform = DecodeRandomResizedCrop(size=32, backend="turbo", scale=(0.1, 0.2))
    return transform.pixels(data, np.random.default_rng(0))


@st.composite
def boxes(draw, width, height):
    wide, high = draw(st.integers(1, width)), draw(st.integers(1, height))
    return Box(draw(st.integers(0, width - wide)), draw(st.integers(0, height - high)), wide, high)


# --- the pixels -----------------------------------------------------------------------------------


@given(st.data(), st.integers(1, 300), st.integers(1, 256), st.sampled_from(SAMPLINGS))
@pytest.mark.slow
def test_pixels_do_not_depend_on_the_rows_that_are_left_out(data, width, height, sampling):
    jpeg = encode(width, height, sampling, data.draw(st.sampled_from([30, 90, 100])))
    box, size = data.draw(boxes(width, height)), data.draw(st.integers(1, 40))
    settings = {"is_gray": data.draw(st.booleans())}
    parts = [shown(jpeg + end, box, size, **settings) for end in (b"", ALL)]
    assert np.array_equal(*parts)


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_row_of_a_part_is_right_to_its_last(sampling, factor):
    """Chroma of the last row is upsampled from a row below it."""
    jpeg = encode(sampling=sampling)
    for bottom in range(8 * factor, 192, factor):
        box = Box(0, bottom - 8 * factor, 8 * factor, 8 * factor)
        assert np.array_equal(shown(jpeg, box, 8), shown(jpeg + ALL, box, 8)), bottom


# --- which rows are decoded -----------------------------------------------------------------------


def test_damage_below_a_part_is_not_met():
    jpeg = encode()
    damaged = jpeg[:-40] + bytes(38) + jpeg[-2:]
    assert np.array_equal(shown(damaged), shown(jpeg))
    assert shown(damaged + ALL) is None


@pytest.mark.parametrize("kept", [100, 700, 2000, -200, -3])
def test_a_cut_file_is_an_error_wherever_the_part_is(kept):
    with pytest.raises((ValueError, OSError)):
        crop(encode()[:kept])


def with_segment(jpeg, marker, contents):
    """The JPEG with one more segment at its start."""
    segment = bytes([0xFF, marker]) + (len(contents) + 2).to_bytes(2, "big") + contents
    return jpeg[:2] + segment + jpeg[2:]


def with_arithmetic_codes():
    """By the marker of its frame."""
    return encode().replace(b"\xff\xc0", b"\xff\xc9")


def with_two_scans():
    """The first scan holds one component."""
    jpeg = encode()
    at = jpeg.index(b"\xff\xda")
    return jpeg[: at + 2] + b"\0\x08\1" + jpeg[at + 5 : at + 7] + jpeg[at + 11 :]


@pytest.mark.parametrize("size", [(128, 96), (256, 192)])
def test_a_thumbnail_in_a_segment_is_not_taken_for_the_image(size):
    jpeg = with_segment(encode(), 0xE1, b"Exif\0\0" + encode(*size))
    assert np.array_equal(shown(jpeg), shown(encode()))


DECODED_WHOLE = {
    "bytes after the end": encode() + ALL,
    "narrow": encode(7),
    "progressive": pillow.encode(PHOTO, progressive=True),
    "restart markers": pillow.encode(PHOTO, restart_marker_blocks=4),
    "arithmetic codes": with_arithmetic_codes(),
    "two scans": with_two_scans(),
}


@pytest.mark.parametrize("kind", DECODED_WHOLE)
def test_some_are_decoded_whole(kind):
    data = DECODED_WHOLE[kind]
    assert np.array_equal(crop(data), crop(data + ALL))
