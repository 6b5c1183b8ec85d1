"""Resizing of photographs before they are packed, as a function of one sample.

A map, as of labels or depths, is not averaged: an average of two classes is a third one.
"""

from contextlib import suppress
from io import BytesIO
from typing import Any, Final

from lightning_shards.errors import SampleError
from lightning_shards.samples.images import decode_pil

_FORMATS: Final = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
_QUALITY: Final = 90
_PHOTO_MODES: Final = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})


def with_smaller_images(sample: dict[str, Any], *, resize: int) -> dict[str, Any]:
    """The sample with images whose shorter side has at most `resize` pixels, in their own formats.

    A smaller image stays the same byte for byte. Images are turned upright by their EXIF
    orientation, which is then removed, like all other metadata. Members whose suffix is not one of
    JPEG, PNG or WebP are not touched.

    A JPEG is a photograph, and so is a PNG or WebP that is alone in its sample, in a field without
    a dot. Others may be maps of values.

    Raises:
        SampleError: An image may be a map.
    """
    images = {name: kind for name in sample if (kind := _FORMATS.get(name.rpartition(".")[2]))}
    smaller = dict(sample)
    for name, kind in images.items():
        image = decode_pil(sample[name])
        may_be_map = kind != "JPEG" and ("." in name or len(images) > 1)
        if may_be_map or image.mode not in _PHOTO_MODES:
            raise SampleError(
                f"{sample['__key__']}.{name} (mode {image.mode}) may be a map of values, which "
                "--resize would average; resize the images of such samples before they are "
                "packed, or by a function of yours for `reshard --map`"
            )
        if min(image.size) > resize:
            smaller[name] = _resized(image, resize, kind)
    return smaller


def _resized(image: Any, resize: int, kind: str) -> bytes:
    from PIL import Image, ImageOps

    with suppress(Exception):  # damaged tags raise anything
        image = ImageOps.exif_transpose(image)
    if kind == "JPEG" and image.mode not in ("RGB", "L"):
        image = image.convert("RGB")
    factor = resize / min(image.size)
    width, height = (max(1, round(side * factor)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    image.save(file := BytesIO(), kind, quality=_QUALITY)
    return file.getvalue()
