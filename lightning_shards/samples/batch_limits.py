"""The limits of what the values of one field may take in a batch, counted as they are decoded.

A small file may unpack to much, so each one has a limit. Many that keep to it would still fill the
memory together.
"""

import marshal
import sys
from collections.abc import Collection, Iterator
from math import prod
from typing import Any, cast

import numpy as np

from lightning_shards.errors import SampleError
from lightning_shards.samples.decoding.decoders import IMAGE_DECODERS, OBJECT_DECODERS, Decoding
from lightning_shards.samples.decoding.images import MAX_PIXELS
from lightning_shards.samples.loaded_torch import is_tensor

MAX_BATCH_PIXELS = 24 * MAX_PIXELS
"""Most pixels of one field in a batch if no transform makes its images smaller: 6.4 GB in RGB."""

MAX_BATCH_BYTES = 2**32
"""Most bytes of memory of the unpacked values of one field in a batch if no transform takes it."""

_MOST_PER_BYTE = 40
"""Bytes of memory that `marshal` writes as one: 36 for a dict with nothing in it."""

_COLLECTIONS = (dict, list, tuple, set, frozenset)
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})  # looked at most often, and fast


class PixelCount:
    """Counts the pixels of one field in a batch, as its images are decoded.

    Args:
        field: Name of the field.
    """

    def __init__(self, field: str) -> None:
        self._field, self._pixels = field, 0

    def add(self, image: Any) -> None:
        """Count one more image; a value that has no shape, such as None, counts as one pixel.

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


class UnpackedCount:
    """Counts the memory of the values of one field in a batch, as they are unpacked.

    Args:
        field: Name of the field.
        are_objects: Whether its values are Python objects in others, of which small ones are
            not counted.
    """

    def __init__(self, field: str, *, are_objects: bool) -> None:
        self._field, self._are_objects, self._bytes = field, are_objects, 0

    def add(self, value: Any) -> None:
        """Count one more value.

        Raises:
            SampleError: The values take too much memory.
        """
        if self._are_objects and _are_small(value):
            return
        self._bytes += memory_of(value)
        if self._bytes > MAX_BATCH_BYTES:
            raise SampleError(
                f"the values of field {self._field!r} in one batch take more than "
                f"{MAX_BATCH_BYTES} bytes when they are unpacked; give the field a transform that "
                "makes them smaller, or lower batch_size"
            )


def counts_of(field: str, decodings: Collection[Decoding]) -> Iterator[PixelCount | UnpackedCount]:
    """What counts the values of a field that is decoded in these ways, for one batch."""
    if any(decoding.decoder in IMAGE_DECODERS for decoding in decodings):
        yield PixelCount(field)
    decoders = {each.decoder for each in decodings if each.is_gzipped} - IMAGE_DECODERS
    decoders |= {"npz"} & {each.decoder for each in decodings}
    if decoders:
        yield UnpackedCount(field, are_objects=decoders <= OBJECT_DECODERS)


def _are_small(value: Any) -> bool:
    """Whether objects surely take less than 1 MiB, found out in a tenth of the time of a count."""
    try:
        return len(marshal.dumps(value)) < 2**20 // _MOST_PER_BYTE
    except ValueError:  # of a type that marshal does not know
        return False


def memory_of(value: object) -> int:
    """Bytes that a value takes, with all that it holds in collections.

    A collection that is there twice counts once. Numbers and texts count wherever they stand,
    although Python keeps small ones but once.
    """
    total, seen, others = 0, set[int](), [cast("Any", value)]
    while others:
        part = others.pop()
        if id(part) in seen:  # CBOR can name a value again, and even inside of itself
            continue
        seen.add(id(part))
        if isinstance(part, np.ndarray) or is_tensor(part):
            total += cast("Any", part).nbytes
            continue
        total += sys.getsizeof(part, 0)
        if isinstance(part, _COLLECTIONS):
            items: list[Any] = [*cast("Any", part)]
            if isinstance(part, dict):
                items += cast("dict[Any, Any]", part).values()
            total += sum(sys.getsizeof(item) for item in items if type(item) in _PLAIN)
            others += [item for item in items if type(item) not in _PLAIN]
    return total
