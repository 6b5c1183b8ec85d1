"""Thumbnails: images in the size in which a sheet or a page shows them.

A small image is enlarged by a whole factor, so that each of its pixels stays a square of one
colour. A large one is made smaller. Pixels are those that training gets.
"""

from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import Any, Final

from lightning_shards.samples.images import decode_rgb

_JPEG_QUALITY: Final = 85


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """An image that is no larger than wanted, and how much it is to be enlarged.

    Attributes:
        image: A `PIL.Image.Image` in RGB.
        factor: The whole number by which its height and width are multiplied when it is shown.
        is_reduced: Whether the image was larger before.
        original: Width and height of the image in the shard, in pixels.
    """

    image: Any
    factor: int
    is_reduced: bool
    original: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height when it is shown, in pixels."""
        return self.image.width * self.factor, self.image.height * self.factor

    def enlarged(self) -> Any:
        """The image as it is shown, a `PIL.Image.Image`."""
        nearest: Any = import_module("PIL.Image").Resampling.NEAREST
        return self.image if self.factor == 1 else self.image.resize(self.size, nearest)

    def encoded(self) -> tuple[str, bytes]:
        """Media type and bytes of the image before it is enlarged; without loss if it was small."""
        out = BytesIO()
        if self.is_reduced:
            self.image.save(out, "JPEG", quality=_JPEG_QUALITY)
            return "image/jpeg", out.getvalue()
        self.image.save(out, "PNG")
        return "image/png", out.getvalue()


def make_thumbnail(data: bytes, size: int) -> Thumbnail | None:
    """The thumbnail of an image file; None if the image cannot be decoded.

    Args:
        data: The bytes of the file.
        size: Largest height and width of the thumbnail in pixels.
    """
    image_module: Any = import_module("PIL.Image")
    try:
        pixels = decode_rgb(data)
    except Exception:  # noqa: BLE001 bytes of anybody make decoders raise anything
        return None
    image = image_module.fromarray(pixels.transpose(1, 2, 0))
    original = image.size
    image.thumbnail((size, size))
    return Thumbnail(image, max(1, size // max(image.size)), image.size != original, original)
