"""Image decoding by Pillow or by libjpeg-turbo; no other module knows image libraries.

The libraries come with the extra `image`. The backend is a setting and never depends on what is
installed, because it changes pixels: `pillow` decodes all formats and resizes with antialiasing;
`turbo` decodes JPEG by simplejpeg and resizes by OpenCV, two to three times as fast, and leaves
everything but plain JPEG to Pillow.

Pixels mean the same in both backends: 8 bits a channel (of 16-bit images the upper byte), palette,
CMYK and gray images become RGB, an alpha channel is dropped.
"""

from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from math import prod
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError

MAX_PIXELS = 89_478_485
"""Pillow only warns above this; a small file that claims more would fill the memory."""

MAX_BATCH_PIXELS = 24 * MAX_PIXELS
"""Most pixels of one field in a batch if no transform makes its images smaller: 6.4 GB in RGB.
Many small files that each claim a little less than the limit above would also fill the memory."""

Backend: TypeAlias = Literal["pillow", "turbo"]

Pixels: TypeAlias = NDArray[np.uint8]

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # no EPS: it runs Ghostscript
_PILLOW = {"PIL": "Pillow"}
_LIBRARIES = {
    "pillow": _PILLOW,
    "turbo": _PILLOW | {"simplejpeg": "simplejpeg", "cv2": "opencv-python-headless"},
}
_JPEG = b"\xff\xd8\xff"
_ORIENTATION = 0x0112  # the EXIF tag


class Box(NamedTuple):
    """A part of an image, in pixels of the image."""

    left: int
    top: int
    width: int
    height: int


class OpenImage(Protocol):
    """An image whose header was read; attributes are its width and height in pixels."""

    width: int
    height: int

    def part(self, box: Box, size: int) -> Pixels:
        """A part, resized to `size` x `size` pixels, without decoding more than needed.

        JPEG is decoded at a half, a quarter or an eighth of its size if the part is then still as
        large as the result. `pillow` resizes bilinearly with antialiasing. `turbo` resizes
        bilinearly, and by area averages when it reduces to less than half: on photographs its
        pixels differ from Pillow's by 1.3 of 255 on average.

        Returns:
            uint8, shape (3, size, size), or (1, size, size) in gray.

        Raises:
            NotForTurboError: Only Pillow can decode it.
            OSError: It cannot be read.
        """
        ...


def require_backend(backend: str) -> None:
    """Check that the libraries of a backend are installed.

    Raises:
        ConfigError: A library is not installed, or there is no such backend.
    """
    if backend not in _LIBRARIES:
        raise ConfigError(f"backend must be one of {sorted(_LIBRARIES)}, got {backend!r}")
    for module, package in _LIBRARIES[backend].items():
        if find_spec(module) is None:
            raise ConfigError(
                f"decoding images by {backend!r} needs {package}, which is not installed: "
                "pip install 'lightning-shards[image]', or decode the field as 'raw'"
            )


class PixelCount:
    """Counts the pixels of one field in a batch, as its images are decoded.

    Args:
        field: Name of the field.
    """

    def __init__(self, field: str) -> None:
        self._field, self._pixels = field, 0

    def add(self, image: Any) -> None:
        """Count one more image; a value that a stage turned into something else counts as 0.

        Raises:
            SampleError: The pixels are too many.
        """
        sides = image.size if hasattr(image, "getbands") else getattr(image, "shape", ())[-2:]
        self._pixels += prod(sides)
        if self._pixels > MAX_BATCH_PIXELS:
            raise SampleError(
                f"the images of field {self._field!r} in one batch have more than "
                f"{MAX_BATCH_PIXELS} pixels; give the field a transform that crops them, or lower "
                "batch_size"
            )


def decode_pil(data: bytes) -> Any:
    """The image as a loaded `PIL.Image.Image` in its own mode.

    Raises:
        ValueError: The image has more than `MAX_PIXELS` pixels.
        OSError: Pillow cannot read it.
    """
    image = _open(data)
    image.load()
    return image


def decode_rgb(data: bytes, backend: Backend = "pillow") -> torch.Tensor:
    """The image as uint8, shape (3, height, width)."""
    return torch.as_tensor(_channels_first(_decode(data, "RGB", backend)))


def decode_gray(data: bytes, backend: Backend = "pillow") -> torch.Tensor:
    """The image as uint8, shape (1, height, width)."""
    return torch.as_tensor(_channels_first(_decode(data, "L", backend)))


def open_image(
    data: bytes, *, backend: Backend = "pillow", is_gray: bool = False, is_oriented: bool = False
) -> OpenImage:
    """Read the header of an image.

    Args:
        data: The bytes of an image file.
        backend: See the top of this module.
        is_gray: Whether one channel is wanted.
        is_oriented: Whether the image is turned as its EXIF orientation says.

    Raises:
        ValueError: The image has more than `MAX_PIXELS` pixels.
        OSError: It cannot be read.
    """
    mode = "L" if is_gray else "RGB"
    if backend == "turbo" and not (is_oriented and _is_turned(data)):
        with suppress(NotForTurboError):
            return _TurboImage(data, mode)
    return _PillowImage(data, mode, is_oriented)


class NotForTurboError(Exception):
    """The image is not a JPEG, or a JPEG that at most Pillow can decode."""


def _open(data: bytes) -> Any:
    from PIL import Image

    image = Image.open(BytesIO(data), formats=_FORMATS)
    _require_few_pixels(image.width, image.height)
    return image


def _require_few_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width} x {height} pixels are more than {MAX_PIXELS}")


def _decode(data: bytes, mode: str, backend: Backend) -> Pixels:
    """All pixels of the image, shape (height, width) or (height, width, 3)."""
    if backend == "turbo":
        with suppress(NotForTurboError):
            return _turbo_pixels(data, mode, *_turbo_size(data), factor=1)
    return np.asarray(_eight_bits(decode_pil(data)).convert(mode))


def _channels_first(pixels: Pixels) -> Pixels:
    """Pixels of shape (height, width, 3) as (3, height, width), (height, width) as (1, ...)."""
    if pixels.ndim == 2:  # noqa: PLR2004 gray
        return np.array(pixels[None])
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _eight_bits(image: Any) -> Any:
    """The image with the upper bytes of 16-bit pixels; Pillow would clip most of them to white."""
    if not image.mode.startswith("I;16"):
        return image
    from PIL import Image

    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _is_turned(data: bytes) -> bool:
    return _open(data).getexif().get(_ORIENTATION, 1) != 1


def _factor(box: Box, size: int) -> int:
    """The largest power of two, at most 8, by which the box can shrink without getting too small.

    libjpeg can decode other fractions too, but no faster than the whole image.
    """
    return max(f for f in (1, 2, 4, 8) if f == 1 or min(box.width, box.height) >= f * size)


class _PillowImage:
    def __init__(self, data: bytes, mode: str, is_oriented: bool) -> None:
        from PIL import ImageOps

        image = _open(data)
        self._image = ImageOps.exif_transpose(image) if is_oriented else image
        self._mode = mode
        self.width, self.height = self._image.size

    def part(self, box: Box, size: int) -> Pixels:
        from PIL import Image

        image, factor = self._image, _factor(box, size)
        image.draft(self._mode, (self.width // factor, self.height // factor))
        # includes the draft's rounding
        across, down = image.width / self.width, image.height / self.height
        edges = (
            box.left * across,
            box.top * down,
            (box.left + box.width) * across,
            (box.top + box.height) * down,
        )
        whole = _eight_bits(image).convert(self._mode)
        resized = whole.resize((size, size), Image.Resampling.BILINEAR, box=edges)
        return _channels_first(np.asarray(resized))


class _TurboImage:
    def __init__(self, data: bytes, mode: str) -> None:
        self._data, self._mode = data, mode
        self.width, self.height = _turbo_size(data)

    def part(self, box: Box, size: int) -> Pixels:
        cv2, factor = _cv2(), _factor(box, size)
        pixels = _turbo_pixels(self._data, self._mode, self.width, self.height, factor)
        left, top, right, bottom = (
            round(edge / factor)
            for edge in (box.left, box.top, box.left + box.width, box.top + box.height)
        )
        part = pixels[top:bottom, left:right]
        method = cv2.INTER_AREA if min(part.shape[:2]) >= 2 * size else cv2.INTER_LINEAR
        resized: Pixels = cv2.resize(part, (size, size), interpolation=method)
        if resized.ndim == 2:  # noqa: PLR2004 gray
            return resized[None]
        planes = np.empty((3, size, size), np.uint8)
        cv2.split(resized, list(planes))  # ten times faster than a transposed copy
        return planes


def _turbo_size(data: bytes) -> tuple[int, int]:
    if not data.startswith(_JPEG):
        raise NotForTurboError
    try:
        height, width, *_ = _simplejpeg().decode_jpeg_header(data)
    except ValueError as error:
        raise NotForTurboError from error
    _require_few_pixels(width, height)
    return width, height


def _turbo_pixels(data: bytes, mode: str, width: int, height: int, factor: int) -> Pixels:
    """The pixels of a JPEG at 1 / factor of its size, shape (height, width) or (..., 3)."""
    limits = {"min_height": -(-height // factor), "min_width": -(-width // factor)}
    try:
        pixels: Pixels = _simplejpeg().decode_jpeg(
            data, "GRAY" if mode == "L" else "RGB", **(limits if factor > 1 else {})
        )
    except ValueError as error:  # CMYK, or damage that Pillow can recover from
        raise NotForTurboError from error
    return pixels[..., 0] if mode == "L" else pixels


@cache
def _simplejpeg() -> Any:
    return import_module("simplejpeg")  # an extra


@cache
def _cv2() -> Any:
    cv2 = import_module("cv2")  # an extra
    cv2.setNumThreads(0)  # there are many workers already
    return cv2
