"""The frame header of a JPEG, and the same JPEG with fewer rows: only bytes, no image library.

A JPEG is decoded from its first row down. A decoder that is told of fewer rows than there are stops
early, and the rows that it gives keep their pixels, but for those that depend on a row below.
"""

import struct
from typing import NamedTuple

_MARKER_AND_LENGTH = struct.Struct(">HH")
_FRAME = struct.Struct(">BHHB")  # bits of a sample, height, width, number of components
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xFFC0, 0xFFC1, 0xFFC2
_HUFFMAN_TABLES, _QUANTIZATION_TABLES, _COMMENT = 0xFFC4, 0xFFDB, 0xFFFE
_SCAN, _RESTART_INTERVAL = 0xFFDA, 0xFFDD
_APPLICATION = range(0xFFE0, 0xFFF0)
_PLAIN = frozenset(
    {_BASELINE, _EXTENDED, _PROGRESSIVE, _HUFFMAN_TABLES, _QUANTIZATION_TABLES, _COMMENT}
    | {_SCAN, _RESTART_INTERVAL, *_APPLICATION}
)
_END = b"\xff\xd9"
_JFIF, _JFIF_1 = b"JFIF\0", b"JFIF\0\1"

_MCU_HEIGHTS = {
    b"\x11\x11\x11": 8,  # 4:4:4
    b"\x21\x11\x11": 8,  # 4:2:2
    b"\x41\x11\x11": 8,  # 4:1:1
    b"\x22\x11\x11": 16,  # 4:2:0
    b"\x12\x11\x11": 16,  # 4:4:0
    b"\x11": 8,  # gray
}
"""Rows of pixels in an MCU (minimum coded unit), by the sampling factors of the components."""

_LEAST_WIDTH = 8
"""From this width on the width alone decides at which scale simplejpeg decodes an image."""


class JpegFrame(NamedTuple):
    """What the header of a JPEG says of its pixels.

    Attributes:
        height: Rows of pixels.
        width: Columns of pixels.
        mcu_height: Rows that are coded together; 0 if all rows must be decoded.
        height_at: Where among the bytes the height is.
    """

    height: int
    width: int
    mcu_height: int = 0
    height_at: int = 0

    def rows_to_decode(self, rows: int) -> int:
        """How many rows are decoded to get the first `rows`."""
        if self.mcu_height == 0:
            return self.height
        return min(-(-rows // self.mcu_height) * self.mcu_height, self.height)


def read_frame(data: bytes) -> JpegFrame | None:
    """The frame of a plain JPEG: 8 bits, gray or in three colours, by Huffman codes; else None.

    Rows can be left out of a baseline JPEG with one scan and without restart markers. Its bytes
    must end in the end-of-image marker: of a file that was cut all rows are decoded, so that it is
    an error whatever part is wanted.
    """
    try:
        segments = _segments(data)
        at = segments.get(_BASELINE) or segments.get(_EXTENDED) or segments[_PROGRESSIVE]
        bits, height, width, components = _FRAME.unpack_from(data, at)
        scanned_components = data[segments[_SCAN]]
    except (struct.error, LookupError):
        return None
    mcu_height = _MCU_HEIGHTS.get(data[at + 7 : at + 6 + 3 * components : 3])
    if not (bits == 8 and height and width and mcu_height):  # noqa: PLR2004 bits
        return None
    is_whole_needed = (
        _PROGRESSIVE in segments
        or _RESTART_INTERVAL in segments
        or scanned_components != components  # other scans follow
        or width < _LEAST_WIDTH
        or not data.endswith(_END)
    )
    return JpegFrame(height, width, 0 if is_whole_needed else mcu_height, at + 1)


def with_height(data: bytes, frame: JpegFrame, height: int) -> bytearray:
    """A copy of the JPEG that claims another height."""
    copy = bytearray(data)
    copy[frame.height_at : frame.height_at + 2] = height.to_bytes(2, "big")
    return copy


def _segments(data: bytes) -> dict[int, int]:
    """Where the contents of segments begin, by marker, up to the first scan; {} if not plain.

    Each segment is skipped by its length, so that the frame of a thumbnail in it is not met.
    """
    segments: dict[int, int] = {}
    if data.startswith(_JFIF, 6) and not data.startswith(_JFIF_1, 6):
        return segments  # simplejpeg warns of other versions
    position, marker = 2, 0  # after the start-of-image marker
    while marker != _SCAN:
        marker, length = _MARKER_AND_LENGTH.unpack_from(data, position)
        if marker not in _PLAIN:
            return {}
        segments[marker] = position + 4
        position += 2 + length
    return segments
