"""Contact sheets: many images on one PNG, each with a line of text below it."""

from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from typing import Any

from lightning_shards.samples.images import decode_pil, require_backend

_MARGIN, _TEXT_HEIGHT = 4, 14
_PAPER, _INK, _BAD = "white", "black", "#ffb0b0"


def contact_sheet(
    images: Sequence[bytes], labels: Sequence[str], *, columns: int, size: int
) -> bytes:
    """The images in rows, never enlarged; an image that cannot be decoded is shown in red.

    Args:
        images: The bytes of image files.
        labels: A line for each image, cut to the width of the image.
        columns: Images in a row.
        size: Largest height and width of an image in pixels.

    Returns:
        The bytes of a PNG.

    Raises:
        ConfigError: Pillow is not installed.
    """
    require_backend("pillow")
    image_module: Any = import_module("PIL.Image")
    draw_module: Any = import_module("PIL.ImageDraw")
    columns = min(columns, len(images))
    width, height = size + 2 * _MARGIN, size + 2 * _MARGIN + _TEXT_HEIGHT
    sheet = image_module.new("RGB", (columns * width, -(-len(images) // columns) * height), _PAPER)
    draw = draw_module.Draw(sheet)
    for number, (data, label) in enumerate(zip(images, labels, strict=True)):
        left, top = number % columns * width + _MARGIN, number // columns * height + _MARGIN
        try:
            image = decode_pil(data).convert("RGB")
        except (OSError, ValueError, SyntaxError):
            draw.rectangle((left, top, left + size, top + size), fill=_BAD)
        else:
            image.thumbnail((size, size))
            sheet.paste(image, (left, top))
        draw.text((left, top + size), _fitted(draw, label, size), fill=_INK)
    out = BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def _fitted(draw: Any, label: str, width: int) -> str:
    """The beginning of a label that fits; the font has Latin letters only."""
    text = "".join(letter if letter.isprintable() else "?" for letter in label)
    text = text.encode("latin-1", "replace").decode("latin-1")
    while text and draw.textlength(text) > width:
        text = text[:-1]
    return text
