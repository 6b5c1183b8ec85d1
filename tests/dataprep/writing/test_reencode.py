"""Images that become smaller: photographs are averaged, and maps keep their values."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from lightning_shards.dataprep.reencode import Reencode
from lightning_shards.errors import ConfigError, SampleError

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


def frames(kind):
    """Two images in one file."""
    first, second = Image.fromarray(noise(3)), Image.fromarray(noise(3) // 2)
    return encoded(first, kind, save_all=True, append_images=[second])


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
    smaller = Reencode(resize=16, quality=50)(sample)
    before, after = decoded(sample[field]), decoded(smaller[field])
    assert decoded(smaller["jpg"]).size == after.size == SMALL
    assert after.mode == before.mode
    middles = np.array(before)[1::2, 1::2]  # of two pixels, the one that the middle falls on
    assert (np.array(after) == middles).all()
    if name == "P":
        assert after.getpalette()[:12] == before.getpalette()[:12]


def test_a_map_that_needs_no_other_size_stays_as_it_is():
    mask = encoded(Image.fromarray(noise(4)), "WEBP", lossless=True)
    sample = {"__key__": "0", "jpg": PHOTO, "mask.webp": mask}
    assert Reencode(resize=32, quality=50)(sample)["mask.webp"] == mask


@pytest.mark.parametrize("orientation", [3, 6])
def test_an_image_with_a_map_is_not_turned(orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    photo = encoded(Image.fromarray(noise(3)), "JPEG", exif=exif)
    mask = encoded(Image.fromarray(noise(high=5)))
    smaller = Reencode(resize=16)({"__key__": "0", "jpg": photo, "mask.png": mask})
    image = decoded(smaller["jpg"])
    assert image.size == decoded(smaller["mask.png"]).size == SMALL
    assert image.getexif()[ORIENTATION] == orientation
    alone = decoded(Reencode(resize=16)({"__key__": "0", "jpg": photo})["jpg"])
    assert alone.size == (SMALL if orientation == 3 else SMALL[::-1])
    assert ORIENTATION not in alone.getexif()


def test_jpegs_are_photographs_whatever_their_field_is():
    smaller = Reencode(resize=16)({"__key__": "0", "left.jpg": PHOTO, "jpg": PHOTO})
    assert smaller["left.jpg"] == smaller["jpg"]


@pytest.mark.parametrize("name", ["P", "1", "I;16"])
def test_what_could_be_a_map_by_its_pixels_has_to_be_named(name):
    sample = {"__key__": "0", "png": encoded(MAPS[name][0])}
    message = f"0.png cannot be resized .* of the mode {name}; give --resample png=lanczos for a ph"
    with pytest.raises(SampleError, match=message):
        Reencode(resize=16)(sample)
    as_photo = decoded(Reencode(resize=16, resample={"png": "lanczos"})(sample)["png"])
    as_map = decoded(Reencode(resize=16, resample={"png": "nearest"})(sample)["png"])
    assert (as_photo.size, as_map.size, as_map.mode) == (SMALL, SMALL, name)


def test_one_of_two_images_has_to_be_named():
    sample = {"__key__": "0", "jpg": PHOTO, "png": encoded(MAPS["L"][0])}
    with pytest.raises(SampleError, match="it stands beside other images, jpg, png; gi"):
        Reencode(resize=16)(sample)
    smaller = Reencode(resize=16, resample={"png": "nearest"})(sample)
    assert set(np.unique(decoded(smaller["png"]))) <= set(np.unique(MAPS["L"][0]))


def test_maps_that_pillow_cannot_hold_are_refused_or_kept():
    sample = {"__key__": "0", "flow.png": deep_image(3)}
    with pytest.raises(SampleError, match=r"channels have 16 bits.* or flow\.png=keep"):
        Reencode(resize=16)(sample)
    deep = Reencode(resize=16, resample={"flow.png": "keep"})
    assert deep(sample) == sample


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_colours_of_16_bits_lose_none_without_a_word(channels):
    sample = {"__key__": "0", "png": deep_image(channels)}
    message = r"channels have 16 bits, .*give --resample png=lanczos for .* or png=keep to leave"
    with pytest.raises(SampleError, match=message):
        Reencode(resize=16)(sample)
    assert Reencode(resize=16, resample={"png": "keep"})(sample) == sample
    as_photo = Reencode(resize=16, resample={"png": "lanczos"})(sample)["png"]
    assert decoded(as_photo).size == SMALL


@pytest.mark.parametrize("field", ["png", "webp", "mask.png", "mask.webp"])
def test_animations_lose_no_frame_without_a_word(field):
    sample = {"__key__": "0", field: frames(field.rpartition(".")[2])}
    with pytest.raises(SampleError, match=rf"{field} .*has 2 frames, .* or {field}=keep to"):
        Reencode(resize=16)(sample)
    assert Reencode(resize=16, resample={field: "keep"})(sample) == sample


def test_a_jpeg_with_a_preview_is_a_photograph():
    sample = {"__key__": "0", "jpg": frames("MPO")}
    assert decoded(sample["jpg"]).n_frames == 2
    image = decoded(Reencode(resize=16)(sample)["jpg"])
    assert (image.format, image.size) == ("JPEG", SMALL)


def test_of_a_jpeg_only_what_can_be_given_is_named():
    with pytest.raises(SampleError, match="jpg=lanczos for a photograph, or jpg=keep to"):
        Reencode(resize=16)({"__key__": "0", "jpg": palette_image()})


@pytest.mark.parametrize(
    ("resample", "message"),
    [
        ({"txt": "keep"}, r"resample must name fields of jpg, jpeg, png, webp .* got txt=keep"),
        ({"png": "bilinear"}, r"one of lanczos, nearest, keep for each .*, got png=bilinear"),
        ({"mask.jpg": "nearest"}, r"a JPEG keeps no values: not nearest\), got mask\.jpg=nearest"),
    ],
)
def test_settings_that_cannot_work_are_refused(resample, message):
    with pytest.raises(ConfigError, match=message):
        Reencode(resize=16, resample=resample)
