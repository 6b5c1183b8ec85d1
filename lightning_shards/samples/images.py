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
from functools import cache, partial
from importlib import import_module
from io import BytesIO
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import SampleError, require_choice, require_library

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
_SHOWN = 24  # bytes in an error
_BASELINE, _SCAN, _END_OF_IMAGE = b"\xff\xc0", b"\xff\xda", b"\xff\xd9"
_RESTARTS = b"\xff\xdd\0\4"
"""Of a JPEG with restart markers, which is complained of otherwise."""
_LEAST_WIDTH = 8
"""From this width on the width alone decides at which scale simplejpeg decodes an image."""
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
    return _decode(data, "RGB")


def decode_gray(data: bytes) -> Pixels:
    """The image as uint8, shape (1, height, width); errors as of `decode_rgb`."""
    return _decode(data, "L")


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
        with suppress(ValueError):  # no JPEG, or one that at most Pillow can decode
            _show_by_turbo(data, box_of, out, mode)
            return
    _show_by_pillow(data, box_of, out, mode)


def put_channels_first(pixels: Pixels, out: Pixels, backend: Backend, *, is_flipped: bool) -> None:
    """Copy pixels (height, width, 3) or (height, width) into (channels, height, width), dense.

    They are turned left to right if `is_flipped` says so.
    """
    if backend == "turbo":
        turned = _cv2().flip(pixels, 1) if is_flipped else pixels
        _cv2().split(turned, list(out))  # ten times faster than a transposed copy
    else:
        turned = pixels[:, ::-1] if is_flipped else pixels
        out[...] = np.atleast_3d(turned).transpose(2, 0, 1)


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
    """All pixels of the image, shape (channels, height, width)."""
    image = _open(data)
    _require_picture(image, mode)
    pixels = np.atleast_3d(np.asarray(image.convert(mode)))
    return np.array(pixels.transpose(2, 0, 1), order="C")  # Pillow's memory is not writable


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


def _show_by_pillow(data: bytes, box_of: Callable[[int, int], Box], out: Pixels, mode: str) -> None:
    from PIL import Image

    image, size = _open(data), len(out)
    _require_picture(image, mode)
    sides = image.width, image.height
    box = box_of(*sides)
    factor = _factor(box, size)
    image.draft(mode, (sides[0] // factor, sides[1] // factor))
    across, down = image.width / sides[0], image.height / sides[1]  # with the draft's rounding
    edges = (
        box.left * across,
        box.top * down,
        (box.left + box.width) * across,
        (box.top + box.height) * down,
    )
    whole = image.convert(mode)
    out[...] = np.asarray(whole.resize((size, size), Image.Resampling.BILINEAR, box=edges))


def _show_by_turbo(data: bytes, box_of: Callable[[int, int], Box], out: Pixels, mode: str) -> None:
    """As `show_part`; raises ValueError for what simplejpeg cannot decode."""
    height, width, *_ = _simplejpeg().decode_jpeg_header(data)
    _require_few_pixels(width, height)
    box = box_of(width, height)
    factor = _factor(box, len(out))
    left, right = round(box.left / factor), round((box.left + box.width) / factor)
    top, bottom = round(box.top / factor), round((box.top + box.height) / factor)
    left, top = min(left, right - 1), min(top, bottom - 1)  # rounding may leave nothing
    rows = min((bottom + _CONTEXT_ROW) * factor, height)
    pixels = _decode_rows(data, (height, width), rows, factor, mode)
    _resize_by_opencv(pixels[top:bottom, left:right], out)


def _decode_rows(data: bytes, sides: tuple[int, int], rows: int, factor: int, mode: str) -> Pixels:
    """At least the first `rows` of a JPEG of (height, width), at 1 / factor of its size."""
    height, width = sides
    gives, channels = ("GRAY", 1) if mode == "L" else ("RGB", 3)
    decode = partial(_simplejpeg().decode_jpeg, colorspace=gives, min_width=-(-width // factor))
    at = _height_at(data, height, width) if rows < height else None
    if at is not None:
        pixels = np.empty((-(-rows // factor), -(-width // factor), channels), np.uint8)
        shorter = data[:at] + rows.to_bytes(2, "big") + data[at + 2 :]
        try:
            return decode(shorter, min_height=len(pixels), buffer=pixels)
        except ValueError as error:  # the first complaint, which comes after the last row
            if _ROWS_LEFT_OUT in str(error):
                return pixels
    return decode(data, min_height=-(-height // factor))


def _height_at(data: bytes, height: int, width: int) -> int | None:
    """Where a JPEG has its height, if the rows below a part can be left out.

    It is baseline, of 8 bits, with one scan and without restart markers. Its bytes must end in the
    end-of-image marker: of a file that was cut all rows are decoded, so that it is an error
    whatever part is wanted.
    """
    # the frame: marker, length, bits of a sample, sides, components; no thumbnail has its sides
    at = data.find(struct.pack(">BHH", 8, height, width))
    scan = data.find(_SCAN, at)  # marker, length, components
    has_one_scan = data[scan + 4 : scan + 5] == data[at + 5 : at + 6]
    is_baseline = at > 0 and data[at - 4 : at - 2] == _BASELINE and has_one_scan
    is_divisible = is_baseline and _RESTARTS not in data[:scan] and width >= _LEAST_WIDTH
    return at + 1 if is_divisible and data.endswith(_END_OF_IMAGE) else None


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


@cache
def _simplejpeg() -> Any:
    return import_module("simplejpeg")  # an extra


@cache
def _cv2() -> Any:
    cv2 = import_module("cv2")  # an extra
    cv2.setNumThreads(0)  # there are many workers already
    return cv2
