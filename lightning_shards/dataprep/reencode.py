"""Resizing of images before they are packed, as a function of one sample.

A photograph is averaged, while a map, as of labels or depths, keeps its values: an average of two
classes is a third one.
"""

from io import BytesIO
from typing import Any, Final

from lightning_shards.errors import SampleError
from lightning_shards.samples.images import UPRIGHT, decode_pil, orientation_of, turned_upright

_FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
_QUALITY = 90
_PHOTO_MODES = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
_DEPTH_AT, _DEEP = 24, 16  # the byte of a PNG with the bits of a channel
_EXACT: Final = {"lossless": True, "exact": True}  # of WebP; PNG always is
_PALETTE_BYTES: Final = 3 << 8


def with_smaller_images(sample: dict[str, Any], *, resize: int) -> dict[str, Any]:
    """The sample with images whose shorter side has at most `resize` pixels, in their own formats.

    A smaller image stays the same byte for byte. Images are turned upright by their EXIF
    orientation, which is then removed, like all other metadata. Members whose field is not one of
    JPEG, PNG or WebP are not touched.

    A JPEG is a photograph. A PNG or WebP is a map if its field has a dot, as mask.png has. One
    without a dot is a photograph, and refused if it could be a map, or would lose bits.

    Raises:
        SampleError: An image could be a photograph or a map, or would lose something.
    """
    images = [name for name in sample if _format_of(name)]
    has_map = any(map(_is_map, images))
    plain = [name for name in images if "." not in name]
    smaller = dict(sample)
    for name in images:
        data = sample[name]
        image = decode_pil(data)
        factor = resize / min(image.size)
        fault = ""
        if len(plain) > 1 and name in plain and _format_of(name) != "JPEG":
            fault = f"it stands beside other images, {', '.join(plain)}"
        elif factor < 1:
            fault = _fault_of(image, data, is_map=_is_map(name), has_map=has_map)
        if fault:
            raise SampleError(
                f"{sample['__key__']}.{name} cannot be resized without a loss: {fault}; give a map "
                "of values a field with a dot, such as mask.png, or resize such files before they "
                "are packed"
            )
        if factor < 1:
            smaller[name] = _resized(image, factor, name)
    return smaller


def _format_of(name: str) -> str | None:
    """The format of the images of a field; None if it is of none that is resized."""
    return _FORMATS.get(name.rpartition(".")[2])


def _is_map(name: str) -> bool:
    """Whether the images of a field are maps of values, by its name."""
    return "." in name and _format_of(name) in ("PNG", "WEBP")


def _fault_of(image: Any, data: bytes, *, is_map: bool, has_map: bool) -> str:
    """What would be lost of an image, or why it could be a map; empty if nothing."""
    if not is_map and image.mode not in _PHOTO_MODES:
        return f"its pixels are of the mode {image.mode}"
    is_deep = image.format == "PNG" and data[_DEPTH_AT] == _DEEP
    if is_deep and len(image.getbands()) > 1:
        return f"its channels have {_DEEP} bits, of which 8 would be lost"
    if has_map and orientation_of(image) != UPRIGHT:
        return "turned upright by its EXIF orientation it might not fit the other images"
    return ""


def _resized(image: Any, factor: float, name: str) -> bytes:
    from PIL import Image

    kind = _format_of(name)
    options: dict[str, Any] = {}
    method = Image.Resampling.LANCZOS
    if _is_map(name):
        options, method = _EXACT, Image.Resampling.NEAREST
    else:
        image = turned_upright(image, orientation_of(image))
        if kind != "PNG":
            options["quality"] = _QUALITY
        if kind == "JPEG" and image.mode not in ("RGB", "L"):
            image = image.convert("RGB")
    width, height = (max(1, round(side * factor)) for side in image.size)
    image = image.resize((width, height), method)
    if image.mode == "P":  # Pillow writes only the bits that the colours take, not all values
        image.putpalette(bytes(image.getpalette("RGB")).ljust(_PALETTE_BYTES, b"\0"))
    image.save(file := BytesIO(), kind, **options)
    return file.getvalue()
