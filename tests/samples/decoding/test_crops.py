"""Fused crops: the right part of the image at the right size, from any file, by both backends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError
from lightning_shards.samples import images
from lightning_shards.samples.crops import (
    DecodeCenterCrop,
    DecodeRandomResizedCrop,
    DecodeResize,
)
from tests.samples.decoding.conftest import (
    HEIGHT,
    WIDTH,
    as_floats,
    difference,
    encode,
    reference,
)


def generator(seed=0):
    return np.random.default_rng(seed)


# --- which part -----------------------------------------------------------------------------------

sides = st.integers(1, 5000)


@given(sides, sides, st.integers(0, 2**32))
def test_a_random_part_lies_inside_and_keeps_to_its_limits(width, height, seed):
    crop = DecodeRandomResizedCrop(size=8)
    box = crop._box(width, height, generator(seed))
    assert 0 <= box.left <= width - box.width
    assert 0 <= box.top <= height - box.height
    assert min(box.width, box.height) >= 1
    if 100 < width < 2 * height and 100 < height < 2 * width:
        assert 0.07 < box.width * box.height / (width * height) < 1.02
        assert 0.7 < box.width / box.height < 1.4


def test_a_random_part_is_that_of_all_runs_before():
    """Its draws are those of `rng.uniform`, as in torchvision's crop."""
    boxes = [DecodeRandomResizedCrop(size=8)._box(500, 375, generator(seed)) for seed in range(2)]
    assert boxes == [(65, 166, 129, 171), (4, 13, 366, 282)]


# --- the pixels -----------------------------------------------------------------------------------


def test_pillow_gives_what_it_gives_by_hand(photo):
    png = encode(photo, "PNG")
    centre = reference(photo, (50, 10, 269, 229), 32)
    assert (DecodeCenterCrop(size=32, resize=35)(png).numpy() == centre).all()
    assert (DecodeResize(size=40)(png).numpy() == reference(photo, (0, 0, WIDTH, HEIGHT), 40)).all()


@pytest.mark.parametrize("size", [14, 100, 400])
def test_both_backends_show_the_same_part(photo, size, backend):
    """At an eighth, a quarter, a half and the whole of the image's size, and enlarged."""
    data = encode(photo, quality=95)
    shown = DecodeCenterCrop(size=size, resize=size, backend=backend)(data)
    expected = reference(photo, (40, 0, 280, 240), size)
    assert difference(shown, expected) < (7 if backend == "turbo" else 4)
    shifted = reference(photo, (48, 0, 288, 240), size)
    assert difference(shown, shifted) > 1.3 * difference(shown, expected)


def test_half_of_the_images_are_turned(photo, backend):
    data = encode(photo)
    never, always, half = (
        DecodeRandomResizedCrop(size=16, scale=(1, 1), ratio=(1, 1), flip=flip, backend=backend)
        for flip in (0, 1, 0.5)
    )
    plain, turned = never(data, generator()), always(data, generator())
    assert plain.equal(turned.flip(2))
    centre = reference(photo, (40, 0, 280, 240), 16)
    assert difference(plain, centre) < difference(turned, centre)
    drawn = [half(data, generator(seed)).equal(plain) for seed in range(200)]
    assert 70 < sum(drawn) < 130


# --- files of all kinds ---------------------------------------------------------------------------


def files(photo):
    """One picture in many forms, and what it is in RGB."""
    transparent = photo.convert("RGBA")
    transparent.putalpha(100)
    return {
        "jpeg": (encode(photo, quality=95), photo),
        "progressive jpeg": (encode(photo, quality=95, progressive=True), photo),
        "full chroma jpeg": (encode(photo, quality=95, subsampling=0), photo),
        "gray jpeg": (encode(photo.convert("L"), quality=95), photo.convert("L")),
        "cmyk jpeg": (encode(photo.convert("CMYK"), quality=95), photo),
        "png": (encode(photo, "PNG"), photo),
        "transparent png": (encode(transparent, "PNG"), photo),
        "webp": (encode(photo, "WEBP", quality=98), photo),
        "bmp": (encode(photo, "BMP"), photo),
    }


@pytest.mark.parametrize(("gray", "channels", "limit"), [(False, 3, 8), (True, 1, 14)])
def test_images_of_every_kind_become_what_was_asked_for(photo, backend, gray, channels, limit):
    for kind, (data, image) in files(photo).items():
        shown = DecodeCenterCrop(size=60, resize=60, backend=backend, gray=gray)(data)
        assert tuple(shown.shape) == (channels, 60, 60), kind
        expected = as_floats(reference(image, (40, 0, 280, 240), 60))
        expected = expected.mean(axis=0, keepdims=True) if gray else expected
        assert difference(shown, expected) < limit, kind


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_too_many_pixels_are_refused_before_they_are_decoded(photo, backend, kind, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", WIDTH * HEIGHT - 1)
    with pytest.raises(ValueError, match=r"320 x 240 pixels are more than 76799"):
        DecodeResize(size=40, backend=backend)(encode(photo, kind)[:2000])


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (DecodeResize, {"size": 0}, "size must be a whole number of at least 1, got 0"),
        (DecodeCenterCrop, {"size": 20, "resize": 19}, "resize must be at least size=20, got 19"),
        (DecodeRandomResizedCrop, {"flip": 1.5}, "flip must be a probability, got 1.5"),
        (DecodeRandomResizedCrop, {"scale": (0, 1)}, r"scale must be two growing .*\(0, 1\)"),
        (DecodeRandomResizedCrop, {"ratio": (2, 1)}, r"ratio must be two growing .*\(2, 1\)"),
        (DecodeResize, {"backend": "gpu"}, r"backend must be one of \['pillow', 'turbo'\]"),
    ],
)
def test_settings_that_cannot_be_are_refused(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        kind(**{"size": 2} | settings)
