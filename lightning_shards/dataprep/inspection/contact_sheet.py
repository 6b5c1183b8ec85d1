"""Contact sheets: many images on one PNG, each with its caption below it."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import Any, Final

from lightning_shards.dataprep.inspection.thumbnails import Thumbnail, make_thumbnail
from lightning_shards.errors import ConfigError
from lightning_shards.samples.images import MAX_PIXELS, require_backend

_GAP: Final = 12  # pixels between neighbours, and around the sheet
_FONT_SIZE: Final = 12
_LINE_HEIGHT: Final = 16
_LEAST_WIDTH: Final = 72  # a caption below a tiny image can still be read
_PAPER, _FRAME, _BAD = "white", "#d0d0d0", "#ffb0b0"
_INKS = ("#555555", "#000000")  # of the key, and of the label
_ELLIPSIS = "…"


def contact_sheet(
    images: Sequence[bytes], captions: Sequence[tuple[str, str]], *, columns: int, size: int
) -> bytes:
    """The images in rows; an image that cannot be decoded is a red box.

    Rows and columns are as large as the images in them, and there are no more columns than fill the
    rows evenly.

    Args:
        images: The bytes of image files.
        captions: Key and label of each image, shortened to the width of a column.
        columns: Most images in a row.
        size: Largest height and width of an image in pixels; a small one is enlarged by the largest
            whole factor that fits.

    Returns:
        The bytes of a PNG.

    Raises:
        ConfigError: Pillow is not installed, or the sheet would be too large to be opened.
    """
    require_backend("pillow")
    thumbnails = [make_thumbnail(data, size) for data in images]
    rows = -(-len(images) // columns)
    grid = _Grid.of(thumbnails, -(-len(images) // rows), 1 + any(label for _, label in captions))
    out = BytesIO()
    _draw(grid, thumbnails, captions, size).save(out, "PNG")
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class _Grid:
    """The layout of a sheet, in pixels.

    Attributes:
        columns: Images in a row.
        width: Width of a column, without the gap.
        heights: Height of the images of each row.
        num_lines: Lines of a caption.
    """

    columns: int
    width: int
    heights: tuple[int, ...]
    num_lines: int

    @classmethod
    def of(cls, thumbnails: Sequence[Thumbnail | None], columns: int, num_lines: int) -> "_Grid":
        """The tightest layout of these thumbnails."""
        width = max([_LEAST_WIDTH, *(each.size[0] for each in thumbnails if each)])
        tallest = max((each.size[1] for each in thumbnails if each), default=width)
        heights = tuple(
            max(each.size[1] if each else tallest for each in thumbnails[start : start + columns])
            for start in range(0, len(thumbnails), columns)
        )
        return cls(columns, width, heights, num_lines)

    @property
    def sheet(self) -> tuple[int, int]:
        """Width and height of the whole sheet."""
        rows = len(self.heights)
        height = sum(self.heights) + rows * (self.num_lines * _LINE_HEIGHT + _GAP) + _GAP
        return self.columns * (self.width + _GAP) + _GAP, height

    def box(self, number: int) -> tuple[int, int, int, int]:
        """Left, top, width and height of the space of one image."""
        row, column = divmod(number, self.columns)
        captions = row * (self.num_lines * _LINE_HEIGHT + _GAP)
        top = _GAP + sum(self.heights[:row]) + captions
        return _GAP + column * (self.width + _GAP), top, self.width, self.heights[row]


def _draw(
    grid: _Grid,
    thumbnails: Sequence[Thumbnail | None],
    captions: Sequence[tuple[str, str]],
    size: int,
) -> Any:
    """The sheet as a `PIL.Image.Image`."""
    if grid.sheet[0] * grid.sheet[1] > MAX_PIXELS:
        raise ConfigError(
            f"a sheet of {len(thumbnails)} samples of at most {size} pixels would have "
            f"{grid.sheet[0]} x {grid.sheet[1]} pixels, more than {MAX_PIXELS}, and few programs "
            "open such an image; lower --samples or --size"
        )
    sheet: Any = import_module("PIL.Image").new("RGB", grid.sheet, _PAPER)
    draw: Any = import_module("PIL.ImageDraw").Draw(sheet)
    font: Any = import_module("PIL.ImageFont").load_default(_FONT_SIZE)
    measure: Callable[[str], float] = partial(draw.textlength, font=font)
    for number, (thumbnail, caption) in enumerate(zip(thumbnails, captions, strict=True)):
        left, top, width, height = grid.box(number)
        if thumbnail is None:
            draw.rectangle((left, top, left + width - 1, top + height - 1), fill=_BAD)
        else:
            wide, high = thumbnail.size
            x, y = left + (width - wide) // 2, top + (height - high) // 2
            draw.rectangle((x - 1, y - 1, x + wide, y + high), outline=_FRAME)
            sheet.paste(thumbnail.enlarged(), (x, y))
        for line, (text, ink) in enumerate(zip(caption, _INKS, strict=True)):
            short = shortened(_printable(text), width - _GAP, measure, middle=not line)
            x = left + (width - measure(short)) // 2
            draw.text((x, top + height + 2 + line * _LINE_HEIGHT), short, fill=ink, font=font)
    return sheet


def shortened(
    text: str, width: float, measure: Callable[[str], float], *, middle: bool = False
) -> str:
    """As much of a text as fits, with an ellipsis where letters are left out.

    Args:
        text: The text.
        width: The width that it must fit into.
        measure: Gives the width of a text.
        middle: Whether letters are left out in the middle, because keys differ at their end.

    >>> shortened("train/cats/000017", 9, len, middle=True)
    'trai…0017'
    >>> shortened("a cat", 4, len)
    'a c…'
    """
    if measure(text) <= width:
        return text

    def cut(kept: int) -> str:
        tail = kept // 2 if middle else 0
        return text[: kept - tail] + _ELLIPSIS + text[len(text) - tail :]

    too_many = bisect_left(range(len(text)), True, key=lambda kept: measure(cut(kept)) > width)
    return cut(max(0, too_many - 1))


def _printable(text: str) -> str:
    """The text in one line, with question marks for letters that the font does not have."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return shown.encode("latin-1", "replace").decode("latin-1")
