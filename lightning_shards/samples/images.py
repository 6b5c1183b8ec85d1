"""Image decoding by Pillow or by libjpeg-turbo, and the headers of JPEGs that say what to decode.

The libraries come with the extra `image`. The backend is a setting and never depends on what is
installed, because it changes pixels: `pillow` decodes all formats and resizes with antialiasing;
`turbo` decodes JPEG by simplejpeg and resizes by OpenCV, two to three times as fast, and leaves
everything but plain JPEG to Pillow. Of a baseline JPEG it decodes no row below a part.

Pixels mean the same in both backends: 8 bits a channel (of photographs with 16 the upper ones),
palette, CMYK and gray images become RGB, an alpha channel is dropped. One channel of more than 8
bits, and brightness in place of a palette's colours, are refused: such files are maps of classes,
ids or depths, whose numbers `decode_labels` keeps.

A JPEG is decoded from its first row down. A decoder that is given a header with fewer rows than
there are stops early, and the rows that it gives keep their pixels, but for those that depend on a
row below.
"""

import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import SampleError, require_choice, require_library

_MARKER_AND_LENGTH = struct.Struct(">HH")
_FRAME = struct.Struct(">BHHB")  # bits of a sample, height, width, number of components
_BASELINE, _SCAN = 0xFFC0, 0xFFDA
_TABLES, _APPLICATION, _COMMENT = (0xFFC4, 0xFFDB), range(0xFFE0, 0xFFF0), 0xFFFE
_BEFORE_A_SCAN = frozenset({_BASELINE, _SCAN, *_TABLES, *_APPLICATION, _COMMENT})
_END_OF_IMAGE = b"\xff\xd9"

_BLOCK_HEIGHT = 8
_LEAST_WIDTH = 8
"""From this width on the width alone decides at which scale simplejpeg decodes an image."""


class JpegFrame(NamedTuple):
    """What the header of a JPEG says of its pixels.

    Attributes:
        height: Rows of pixels.
        width: Columns of pixels.
        mcu_height: Rows of an MCU (minimum coded unit), which are coded together; 0 if all rows
            must be decoded.
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
    """The frame of a JPEG of which the lower rows can be left out; None of any other.

    It is baseline, of 8 bits, with one scan and without restart markers. Its bytes must end in the
    end-of-image marker: of a file that was cut all rows are decoded, so that it is an error
    whatever part is wanted. Each segment before the scan is skipped by its length, so that the
    frame of a thumbnail in it is not met.
    """
    segments: dict[int, int] = {}  # where the contents begin, by marker
    position, marker = 2, 0  # after the start-of-image marker
    try:
        while marker != _SCAN:
            marker, length = _MARKER_AND_LENGTH.unpack_from(data, position)
            if marker not in _BEFORE_A_SCAN:
                return None
            segments[marker] = position + 4
            position += 2 + length
        at = segments[_BASELINE]
        bits, height, width, components = _FRAME.unpack_from(data, at)
        scanned_components = data[segments[_SCAN]]
        # sampling factors of a component: across in the upper four bits, down in the lower ones
        rows_of_blocks = max(factors & 15 for factors in data[at + 7 : at + 6 + 3 * components : 3])
    except (struct.error, LookupError, ValueError):
        return None
    is_divisible = bits == 8 and scanned_components == components and width >= _LEAST_WIDTH  # noqa: PLR2004 bits
    if not (is_divisible and height and rows_of_blocks and data.endswith(_END_OF_IMAGE)):
        return None
    return JpegFrame(height, width, _BLOCK_HEIGHT * rows_of_blocks, at + 1)


def _with_height(data: bytes, frame: JpegFrame, height: int) -> bytearray:
    """A copy of the JPEG that claims another height."""
    copy = bytearray(data)
    copy[frame.height_at : frame.height_at + 2] = height.to_bytes(2, "big")
    return copy


MAX_PIXELS = 89_478_485
"""Pillow only warns above this; a small file that claims more would fill the memory."""

Backend: TypeAlias = Literal["pillow", "turbo"]

Pixels: TypeAlias = NDArray[np.uint8]

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # no EPS: it runs Ghostscript
_PILLOW = {"PIL": "Pillow"}
_LIBRARIES = {
    "pillow": _PILLOW,
    "turbo": _PILLOW | {"simplejpeg": "simplejpeg", "cv2": "opencv-python-headless"},
}
_JPEG = b"\xff\xd8\xff"
_SHOWN = 24  # bytes in an error
_ROWS_LEFT_OUT = "extraneous bytes before marker 0xd9"
"""What libjpeg complains of after the last row, if the header tells of fewer rows than follow."""
_CONTEXT_ROW = 1  # chroma of the last row is upsampled from the row below, too
_MOST_BILINEAR = 2.5  # pixels of the longer side for one of the result
_UP_TO_16_BITS = ("PPM", "PNG")  # formats whose gray images in Pillow's mode "I" are 0 to 65,535
_MOST_OF_SHORT = {"L;2": 3, "L;4": 15}  # by raw mode; Pillow spreads these over 0 to 255


class Box(NamedTuple):
    """A part of an image, in pixels of the image."""

    left: int
    top: int
    width: int
    height: int


def require_backend(backend: str) -> None:
    """Check that the libraries of a backend are installed.

    Raises:
        ConfigError: A library is not installed, or there is no such backend.
    """
    require_choice("backend", backend, tuple(_LIBRARIES))
    what, otherwise = f"decoding images by {backend!r}", ", or decode the field as 'raw'"
    for module, package in _LIBRARIES[backend].items():
        require_library(what, module, package, "image", otherwise)


def decode_pil(data: bytes) -> Any:
    """The image as a loaded `PIL.Image.Image` in its own mode.

    Raises:
        ValueError: The image has more than `MAX_PIXELS` pixels.
        SampleError: It is no image of a known format.
        OSError: Pillow cannot read it.
    """
    image = _open(data)
    image.load()
    return image


def decode_rgb(data: bytes) -> Pixels:
    """The image as uint8, shape (3, height, width).

    Raises:
        SampleError: It is no picture, as `decode_labels` says, or of no known format.
        OSError: It cannot be read.
    """
    return _channels_first(_decode(data, "RGB"))


def decode_gray(data: bytes) -> Pixels:
    """The image as uint8, shape (1, height, width); errors as of `decode_rgb`."""
    return _channels_first(_decode(data, "L"))


def decode_labels(data: bytes) -> NDArray[Any]:
    """The numbers of a map of classes, ids or depths as its file has them, (1, height, width).

    They are uint8 for the indices of a palette, 8 bits or fewer (0 and 1 where there are two
    colours), uint16 for 16 bits, and int32 or float32 for 32. They are never turned by EXIF.

    Raises:
        SampleError: The image has several channels.
        OSError: It cannot be read.
    """
    image = _open(data)
    raw: Any = image.tile[0][3] if image.tile else ""
    raw, *rest = (raw,) if isinstance(raw, str) else raw
    most = rest[0] if image.format == "PPM" and rest else _MOST_OF_SHORT.get(raw)
    image.load()
    values: NDArray[Any] = np.array(image)
    if values.ndim != 2:  # noqa: PLR2004 one channel
        raise SampleError(
            f"labels are of one channel, and this image has {len(image.getbands())} (Pillow's mode "
            f"{image.mode!r}); decode it as 'rgb', and make numbers of its colours by a transform"
        )
    if image.mode == "1":
        values = values.astype(np.uint8)
    elif image.mode == "I" and image.format in _UP_TO_16_BITS:
        values = values.astype(np.uint16)
    if most is not None:  # Pillow spreads such numbers over the range of a type
        values = np.rint(values * (most / np.iinfo(values.dtype).max)).astype(values.dtype)
    return values[None]


def show_part(
    data: bytes,
    box_of: Callable[[int, int], Box],
    out: Pixels,
    *,
    backend: Backend = "pillow",
) -> None:
    """Decode a part of an image, and no more than is needed for it, and resize it into `out`.

    JPEG is decoded at a half, a quarter or an eighth of its size if the part is then still as large
    as the result. `pillow` resizes bilinearly with antialiasing. `turbo` resizes bilinearly, and by
    area averages when it reduces a side to two fifths, or both to half: on photographs its pixels
    differ from Pillow's by 0.5 to 5 of 255 on average.

    Args:
        data: The bytes of an image file.
        box_of: The part, by width and height of the image; asked again if only Pillow can decode
            an image that `turbo` began with.
        out: Of shape (size, size, 3), or (size, size) for gray; dense.
        backend: See the top of this module.

    Raises:
        ValueError: The image has more than `MAX_PIXELS` pixels.
        SampleError: As of `decode_rgb`.
        OSError: It cannot be read.
    """
    mode = "L" if out.ndim == 2 else "RGB"  # noqa: PLR2004 gray has no dimension of channels
    if backend == "turbo":
        with suppress(_NotForTurboError):
            image = _TurboImage(data, mode)
            return image.cut(box_of(image.width, image.height), out)
    image = _PillowImage(data, mode)
    return image.cut(box_of(image.width, image.height), out)


class _NotForTurboError(Exception):
    """The image is not a JPEG, or a JPEG that at most Pillow can decode."""


def flip_left_right(pixels: Pixels, backend: Backend) -> None:
    """Turn pixels left to right, in place; shape (height, width, ...), dense."""
    if backend == "turbo":
        _cv2().flip(pixels, 1, dst=pixels)
    else:
        pixels[...] = pixels[:, ::-1].copy()


def put_channels_first(pixels: Pixels, out: Pixels, backend: Backend) -> None:
    """Copy pixels (height, width, 3) or (height, width) into (channels, height, width), dense."""
    if backend == "turbo":
        _cv2().split(pixels, list(out))  # ten times faster than a transposed copy
    else:
        out[...] = np.atleast_3d(pixels).transpose(2, 0, 1)


def _open(data: bytes) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError as error:
        raise SampleError(
            f"this is no image of a known format, it begins with {data[:_SHOWN]}; fetch the image "
            "again, leave its sample out, or name another decoder in `decode`"
        ) from error
    _require_few_pixels(image.width, image.height)
    return image


def _require_few_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width} x {height} pixels are more than {MAX_PIXELS}")


def _decode(data: bytes, mode: str) -> Pixels:
    """All pixels of the image, shape (height, width) or (height, width, 3)."""
    image = _open(data)
    _require_picture(image, mode)
    image.load()
    return np.asarray(image.convert(mode))


def _channels_first(pixels: Pixels) -> Pixels:
    """Pixels of shape (height, width, 3) as (3, height, width), (height, width) as (1, ...)."""
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)  # noqa: PLR2004 gray
    return np.array(planes, order="C")  # a copy always: Pillow's memory is not writable


def _require_picture(image: Any, mode: str) -> None:
    """Refuse an image, just opened, whose numbers would not be seen in eight bits a channel.

    Raises:
        SampleError: They are of one channel and longer, or indices of colours that would be gray.
    """
    if image.mode[0] in "IF":
        raise SampleError(
            f"its pixels are one number each of more than 8 bits (Pillow's mode {image.mode!r}); "
            "decode classes, ids and depths as 'labels', and scale what is a picture by a transform"
        )
    if mode == "L" and image.mode == "P":
        colours = np.array(image.getpalette()).reshape(-1, 3)
        if (colours != colours[:, :1]).any():
            raise SampleError(
                "its pixels are indices of a palette of colours, and their brightness would stand "
                "for them; decode the indices as 'labels', or the colours as 'rgb'"
            )


def _factor(box: Box, size: int) -> int:
    """The largest power of two, at most 8, by which the box can shrink without getting too small.

    libjpeg can decode other fractions too, but no faster than the whole image.
    """
    side = min(box.width, box.height)
    return next((factor for factor in (8, 4, 2) if side >= factor * size), 1)


class _PillowImage:
    def __init__(self, data: bytes, mode: str) -> None:
        self._image, self._mode = _open(data), mode
        _require_picture(self._image, mode)
        self.width, self.height = self._image.size

    def cut(self, box: Box, out: Pixels) -> None:
        """Write a part, resized to the size of `out`, which is dense."""
        from PIL import Image

        size = len(out)
        image, factor = self._image, _factor(box, size)
        image.draft(self._mode, (self.width // factor, self.height // factor))
        width, height = image.size
        across, down = width / self.width, height / self.height  # includes the draft's rounding
        edges = (
            box.left * across,
            box.top * down,
            (box.left + box.width) * across,
            (box.top + box.height) * down,
        )
        whole = image.convert(self._mode)
        out[...] = np.asarray(whole.resize((size, size), Image.Resampling.BILINEAR, box=edges))


class _TurboImage:
    def __init__(self, data: bytes, mode: str) -> None:
        self._frame = _jpeg_frame(data)
        self.height, self.width = self._frame.height, self._frame.width
        _require_few_pixels(self.width, self.height)
        self._data, self._mode = data, mode

    def cut(self, box: Box, out: Pixels) -> None:
        """Write a part, resized to the size of `out`; raises _NotForTurboError for damage."""
        size = len(out)
        left, top, width, height = box
        right, bottom = left + width, top + height
        factor = _factor(box, size)
        if factor > 1:
            left, right = round(left / factor), round(right / factor)
            top, bottom = round(top / factor), round(bottom / factor)
            left, top = min(left, right - 1), min(top, bottom - 1)  # rounding may leave nothing
        part = self._rows((bottom + _CONTEXT_ROW) * factor, factor)[top:bottom, left:right]
        _resize_by_opencv(part, out)

    def _rows(self, rows: int, factor: int) -> Pixels:
        """At least the first `rows` of the image, at 1 / factor of its size."""
        height = self._frame.rows_to_decode(rows)
        pixels = self._upper_rows(height, factor) if height < self.height else None
        if pixels is None:
            try:
                pixels = self._decode(self._data, self.height, factor)
            except ValueError as error:  # damage that Pillow can recover from
                raise _NotForTurboError from error
        return pixels[..., 0] if self._mode == "L" else pixels

    def _upper_rows(self, height: int, factor: int) -> Pixels | None:
        """The rows down to this height, decoded alone; None if they are damaged."""
        channels = 1 if self._mode == "L" else 3
        pixels = np.empty((-(-height // factor), -(-self.width // factor), channels), np.uint8)
        try:
            self._decode(_with_height(self._data, self._frame, height), height, factor, pixels)
        except ValueError as error:  # the first complaint, which comes after the last row
            return pixels if _ROWS_LEFT_OUT in str(error) else None
        return pixels

    def _decode(
        self, data: bytes | bytearray, height: int, factor: int, out: Pixels | None = None
    ) -> Pixels:
        """The pixels of a JPEG at 1 / factor of its size, shape (height, width, channels)."""
        return _simplejpeg().decode_jpeg(
            data,
            colorspace="GRAY" if self._mode == "L" else "RGB",
            min_height=-(-height // factor) if factor > 1 else 0,
            min_width=-(-self.width // factor) if factor > 1 else 0,
            buffer=out,
        )


def _resize_by_opencv(part: Pixels, out: Pixels) -> None:
    """Resize a part to `out`, by area averages where much of it is passed over.

    OpenCV's bilinear method looks at the four nearest pixels alone. Its area averages take ten
    times as long, about 1 ms, so that they begin where a random crop hardly comes to. They do not
    enlarge: a part which is too short is first averaged along the other side.
    """
    cv2, size = _cv2(), len(out)
    height, width = part.shape[:2]
    method = cv2.INTER_LINEAR
    if min(height, width) >= 2 * size or max(height, width) >= _MOST_BILINEAR * size:
        if min(height, width) >= size:
            method = cv2.INTER_AREA
        else:
            sides = min(width, size), min(height, size)
            part = cv2.resize(part, sides, interpolation=cv2.INTER_AREA)
    cv2.resize(part, (size, size), dst=out, interpolation=method)


def _jpeg_frame(data: bytes) -> JpegFrame:
    if not data.startswith(_JPEG):
        raise _NotForTurboError
    frame = read_frame(data)
    if frame is not None:
        return frame
    try:
        height, width, *_ = _simplejpeg().decode_jpeg_header(data)
    except ValueError as error:
        raise _NotForTurboError from error
    return JpegFrame(height, width)


@cache
def _simplejpeg() -> Any:
    return import_module("simplejpeg")  # an extra


@cache
def _cv2() -> Any:
    cv2 = import_module("cv2")  # an extra
    cv2.setNumThreads(0)  # there are many workers already
    return cv2
