"""A photograph, both backends, and what Pillow makes of an image, for the tests of decoding."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from lightning_shards.readers.batch_reader import decode_column
from lightning_shards.samples.member_bytes import ABSENT, MemberBytes

BACKENDS = ["pillow", "turbo"]
WIDTH, HEIGHT = 320, 240


def encode(image, kind="JPEG", **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def png_of(width, height, depth, pixels):
    """A gray PNG of so many bits a pixel, of these bytes."""

    def chunk(name, data):
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
    return start + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def column_of(field, parts):
    """The column that members of these bytes become."""
    sizes = np.array(list(map(len, parts)))
    known = np.cumsum(sizes) - sizes, sizes, np.full(len(parts), ABSENT)
    return decode_column(field, MemberBytes(np.frombuffer(b"".join(parts), np.uint8), *known))


@pytest.fixture(scope="session")
def photo():
    return Image.fromarray(load_sample_image("china.jpg")).resize((WIDTH, HEIGHT))


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def as_floats(pixels):
    return np.asarray(pixels).astype(float)


def difference(one, other):
    """The mean over all pixels, of 255."""
    return np.abs(as_floats(one) - as_floats(other)).mean()


def reference(image, box, size):
    """What Pillow makes of a part of the whole image, channels first."""
    resized = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized).transpose(2, 0, 1)
