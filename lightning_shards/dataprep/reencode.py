"""Reencoding of images to a smaller size before they are packed, as a function of one sample.

A photograph is averaged, while a map, as of labels or depths, keeps its values: an average of two
classes is a third one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from typing import Any, Final

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.images import (
    UPRIGHT,
    decode_pil,
    orientation_of,
    require_backend,
    turned_upright,
)

_FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
_MAX_QUALITY = 100
_DEFAULT_QUALITY = 90
_PHOTO_MODES = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
_ORIENTATION: Final = 0x0112  # the tag of EXIF
_DEPTH_AT, _DEEP = 24, 16  # the byte of a PNG with the bits of a channel
_EXACT: Final = {"lossless": True, "exact": True}  # of WebP; PNG always is
_PALETTE_BYTES: Final = 3 << 8


@dataclass(frozen=True, kw_only=True)
class Reencode:
    """Resizes the images of a sample and stores them in their own format.

    The shorter side becomes `resize` pixels. Smaller images keep their size, and a file that needs
    no change of size or quality stays the same byte for byte. Images are turned upright by their
    EXIF orientation, which is then removed, like all other metadata. In a sample with a map they
    are not turned and keep the orientation, so that image and map fit each other as before. Members
    whose field is not one of JPEG, PNG or WebP are not touched.

    A JPEG is a photograph. A PNG or WebP is a map if its field has a dot, as mask.png has. One
    without a dot is a photograph, and refused if it could be a map, or would lose bits.

    Attributes:
        resize: Most pixels of the shorter side; None keeps the size.
        quality: Quality of JPEG and WebP photographs, 1 to 100; None: 90 if an image is resized.
    """

    resize: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of their range, and a missing library."""
        if self.resize is not None and self.resize < 1:
            raise ConfigError(f"resize must be at least 1 pixel, got {self.resize}")
        if self.quality is not None and not 1 <= self.quality <= _MAX_QUALITY:
            raise ConfigError(f"quality must be from 1 to {_MAX_QUALITY}, got {self.quality}")
        require_backend("pillow")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the bytes, with the version of Pillow."""
        return {"resize": self.resize, "quality": self.quality, "pillow": version("pillow")}

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The sample with smaller images.

        Raises:
            SampleError: An image cannot be read, or could be a photograph or a map.
        """
        images = [name for name in sample if format_of(name)]
        has_map = any(map(is_map, images))
        plain = [name for name in images if "." not in name]
        smaller = dict(sample)
        for name in images:
            member = f"{sample['__key__']}.{name}"
            if len(plain) > 1 and name in plain and format_of(name) != "JPEG":
                raise _unclear(member, f"it stands beside other images, {', '.join(plain)}")
            smaller[name] = self._smaller(sample[name], name, member, is_turned=not has_map)
        return smaller

    def _smaller(self, data: bytes, name: str, member: str, *, is_turned: bool) -> bytes:
        """The bytes of the file that is stored for one image; `member` is for messages."""
        try:
            image = decode_pil(data)
        except (OSError, ValueError, SyntaxError) as error:  # a broken PNG gives SyntaxError
            raise SampleError(f"{member} is no image that can be read: {error}") from error
        kind, has_values = format_of(name), is_map(name)
        factor = 1.0 if self.resize is None else min(1.0, self.resize / min(image.size))
        if factor == 1 and (self.quality is None or kind == "PNG" or has_values):
            return data
        fault = _fault_of(image, data, has_values=has_values)
        if fault:
            raise _unclear(member, fault)
        options = {} if is_turned else _oriented(image)
        if is_turned:
            image = turned_upright(image, orientation_of(image))
        if has_values:
            return _encoded(_resized(image, factor, "NEAREST"), kind, options | _EXACT)
        if kind != "PNG":
            options["quality"] = self.quality or _DEFAULT_QUALITY
        if kind == "JPEG" and image.mode not in ("RGB", "L"):
            image = image.convert("RGB")
        return _encoded(_resized(image, factor, "LANCZOS"), kind, options)


def format_of(name: str) -> str | None:
    """The format of the images of a field; None if it is of none that is written anew."""
    return _FORMATS.get(name.rpartition(".")[2])


def is_map(name: str) -> bool:
    """Whether the images of a field are maps of values, by its name."""
    return "." in name and format_of(name) in ("PNG", "WEBP")


def _fault_of(image: Any, data: bytes, *, has_values: bool) -> str:
    """What would be lost of an image, or why it could be a map; empty if nothing."""
    # Further images of a JPEG (MPO) are previews or maps of gains.
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        return f"it has {image.n_frames} frames, of which only the first would be stored"
    if not has_values and image.mode not in _PHOTO_MODES:
        return f"its pixels are of the mode {image.mode}"
    is_deep = image.format == "PNG" and data[_DEPTH_AT] == _DEEP
    if is_deep and len(image.getbands()) > 1:
        return f"its channels have {_DEEP} bits, of which 8 would be lost"
    return ""


def _unclear(member: str, why: str) -> SampleError:
    return SampleError(
        f"{member} cannot be resized without a loss: {why}; give a map of values a field with a "
        "dot, such as mask.png, or resize such files before they are packed"
    )


def _oriented(image: Any) -> dict[str, Any]:
    """The options that store an image with the orientation that it has."""
    from PIL import Image

    orientation = orientation_of(image)
    if orientation == UPRIGHT:
        return {}
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    return {"exif": exif}


def _resized(image: Any, factor: float, filter_name: str) -> Any:
    from PIL import Image

    if factor == 1:
        return image
    width, height = (max(1, round(side * factor)) for side in image.size)
    return image.resize((width, height), Image.Resampling[filter_name])


def _encoded(image: Any, kind: str | None, options: Mapping[str, Any]) -> bytes:
    if image.mode == "P":  # Pillow writes only the bits that the colours take, not all values
        image.putpalette(bytes(image.getpalette("RGB")).ljust(_PALETTE_BYTES, b"\0"))
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
