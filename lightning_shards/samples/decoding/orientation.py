"""The EXIF orientation of images, read leniently: how a camera was held decides about no sample."""

from typing import Any

UPRIGHT = 1

_TAG = 0x0112
_LAST = 8
SWAPPING_SIDES = range(5, 9)
"""The orientations that make the width of a file the height of what is seen."""


def orientation_of(image: Any) -> int:
    """The orientation, 1 to 8, of an image of Pillow's; `UPRIGHT` where none can be read.

    That of a PNG may stand behind its pixels, which are decoded for it. Pillow itself turns TIFF.
    """
    if image.format == "PNG":
        image.load()
    if image.format == "TIFF":
        return UPRIGHT
    try:
        orientation = image.getexif().get(_TAG)
        return int(orientation) if orientation in range(UPRIGHT, _LAST + 1) else UPRIGHT
    except Exception:  # noqa: BLE001 damaged tags raise anything, SyntaxError and struct.error too
        return UPRIGHT


def turned_upright(image: Any, orientation: int) -> Any:
    """An image of this orientation as it is to be seen; its tags are left as they are."""
    from PIL import Image

    turn = Image.Transpose
    turns = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image
