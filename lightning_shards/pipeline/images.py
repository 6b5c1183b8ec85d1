"""Image bytes to pixels, by Pillow (the extra `image`); no other module knows image libraries."""

import importlib.util
from io import BytesIO
from typing import Any

import numpy as np
import torch

from lightning_shards.errors import ConfigError

MAX_PIXELS = 89_478_485
"""Pillow only warns above this; a small file that claims more would fill the memory."""

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # no EPS: it runs Ghostscript


def require_pillow() -> None:
    """Check that the image extra is there.

    Raises:
        ConfigError: Pillow is not installed.
    """
    if importlib.util.find_spec("PIL") is None:
        raise ConfigError(
            "decoding images needs Pillow, which is not installed: "
            "pip install 'lightning-shards[image]', or decode the field as 'raw'"
        )


def decode_pil(data: bytes) -> Any:
    """The image as a loaded `PIL.Image.Image` in its own mode.

    Raises:
        ValueError: it has more than `MAX_PIXELS` pixels.
        OSError: Pillow cannot read it.
    """
    from PIL import Image  # noqa: PLC0415 an extra: absent until an image field asks for it

    image = Image.open(BytesIO(data), formats=_FORMATS)
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS}")
    image.load()
    return image


def decode_rgb(data: bytes) -> torch.Tensor:
    """The image as uint8, shape (3, height, width)."""
    pixels = np.asarray(_eight_bits(decode_pil(data)).convert("RGB"))
    # height, width, channel -> channel, height, width
    return torch.as_tensor(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def decode_gray(data: bytes) -> torch.Tensor:
    """The image as uint8, shape (1, height, width)."""
    return torch.as_tensor(np.array(_eight_bits(decode_pil(data)).convert("L"))[None])


def _eight_bits(image: Any) -> Any:
    """The image with the upper bytes of 16-bit pixels: Pillow would clip them, to white mostly."""
    if not image.mode.startswith("I;16"):
        return image
    from PIL import Image  # noqa: PLC0415 as above

    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
