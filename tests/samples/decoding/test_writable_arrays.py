"""The contract of all decoders: the arrays that they give are writable, and belong to the caller.

A transform may work in place, and torch warns of tensors whose memory is not writable.
"""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_shards.readers.batch_reader import decode_column
from lightning_shards.samples import decoders
from lightning_shards.samples.decoders import DECODERS
from lightning_shards.samples.fields import make_fields
from lightning_shards.samples.member_bytes import ListedBytes

ARRAY = np.arange(6.0).reshape(2, 3)


def saved(write, *values):
    file = io.BytesIO()
    write(file, *values)
    return file.getvalue()


def image(mode, side, file_format):
    pixels = np.full((side, side), 7, np.uint16 if mode == "I;16" else np.uint8)
    picture = Image.fromarray(pixels)
    return saved((picture if mode == "I;16" else picture.convert(mode)).save, file_format)


KINDS = [("RGB", 1, "PNG"), ("L", 1, "PNG"), ("RGB", 8, "JPEG"), ("L", 8, "JPEG")]
IMAGES = {" ".join(map(str, kind)): image(*kind) for kind in KINDS}
DEEP = {"I;16": image("I;16", 2, "PNG")}
NPY = (ARRAY, np.asfortranarray(ARRAY), ARRAY[:0], np.array(1), np.array([1j]), ARRAY.astype(">f4"))

MEMBERS = {
    "npy": [saved(np.save, array) for array in NPY],
    "npz": [saved(np.savez, ARRAY, ARRAY[:0])],
    "pth": [saved(lambda file: torch.save(torch.ones(2), file))],
    **{key: list(IMAGES.values()) for key in ("rgb", "gray")},
    "labels": [data for name, data in IMAGES.items() if "RGB" not in name] + list(DEEP.values()),
    **{kind: [bytes(16), bytes(8), b""] for kind in decoders._NUMBERS},
}
NO_ARRAYS = {"raw", "text", "int", "json", "pil", "pickle"}

CASES = [
    pytest.param(name, data, id=f"{name} {number}")
    for name, members in MEMBERS.items()
    for number, data in enumerate(members)
]


def arrays_in(value):
    """The arrays in a value; the memory of a tensor as one."""
    if isinstance(value, torch.Tensor):
        return [value.numpy()]
    if isinstance(value, np.ndarray):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [array for each in values for array in arrays_in(each)]


def require_owned(value, data):
    arrays = arrays_in(value)
    assert arrays
    for array in arrays:
        assert array.flags.writeable
        assert not np.shares_memory(array, np.frombuffer(data, np.uint8))
        array[...] = 0


def test_every_decoder_is_here():
    assert MEMBERS.keys() | NO_ARRAYS == DECODERS.keys()
    assert not MEMBERS.keys() & NO_ARRAYS


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("decoder", "data"), CASES)
@pytest.mark.parametrize("gives_arrays", [False, True])
def test_what_a_decoder_gives_is_writable(decoder, data, gives_arrays):
    (field,) = make_fields({"x": "bin"}, {"x": decoder}, frozenset({"pth"}))
    field = replace(field, gives_arrays=gives_arrays)
    kept = bytes(bytearray(data))
    require_owned(field.decode({"__key__": "k", "__url__": "u", "bin": data}), data)
    require_owned(decode_column(field, ListedBytes([data])), data)
    assert data == kept
