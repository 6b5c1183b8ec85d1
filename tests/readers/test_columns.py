"""Batches made by columns are those made by samples, byte for byte."""

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.errors import SampleError
from lightning_shards.readers.batch_reader import decode_column
from lightning_shards.samples.collate import column_of
from lightning_shards.samples.decoders import DECODERS
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import ABSENT, MemberBytes


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def member_bytes(parts):
    sizes = np.array(list(map(len, parts)))
    buffer = np.array(bytearray(b"".join(parts)), np.uint8)
    return MemberBytes(buffer, np.cumsum(sizes) - sizes, sizes, np.full(len(parts), ABSENT))


def by_samples(decoder, members):
    samples = [{"x": DECODERS[decoder](data), "__key__": "k"} for data in members]
    return column_of(samples, "x")


def require_equal(column, expected):
    assert type(column) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (column.dtype, column.shape) == (expected.dtype, expected.shape)
        assert column.tobytes() == expected.tobytes()
    elif isinstance(expected, list):
        assert len(column) == len(expected)
        for each, wanted in zip(column, expected, strict=True):
            require_equal(each, wanted)
    else:
        assert column == expected


NUMBERS = st.integers(-(2**63), 2**63 - 1)
MEMBERS = {
    "int": NUMBERS.map(lambda n: f" {n}\n".encode()),
    "float": st.floats().map(lambda number: repr(number).encode()),
    "text": st.text().map(str.encode),
    "raw": st.binary(max_size=9),
    "json": st.one_of(
        NUMBERS, st.booleans(), st.floats(allow_nan=False), st.text(), st.lists(NUMBERS)
    ).map(lambda value: json.dumps(value).encode()),
    "npy": st.sampled_from(
        [
            np.arange(6, dtype=np.uint16),
            np.arange(6, dtype=np.uint16)[::-1],
            np.asfortranarray(np.arange(6).reshape(2, 3)),
            np.float32(1.5),
            np.empty((0, 3)),
            np.array([b"ab", b"cd"]),
            np.array([1j, 2]),
        ]
    ).map(npy),
    "uint16": st.binary(min_size=2, max_size=2) | st.just(b"\x01\x00\xff\xff"),
    "float32": st.lists(st.floats(width=32), max_size=2).map(
        lambda numbers: np.array(numbers, "<f4").tobytes()
    ),
}


@pytest.mark.parametrize("decoder", MEMBERS)
@given(data=st.data())
@settings(max_examples=60)
def test_a_column_is_what_its_samples_give(decoder, data):
    members = data.draw(st.lists(MEMBERS[decoder], min_size=1, max_size=5))
    field = Field("x", ("a",), decoder)
    try:
        expected = by_samples(decoder, members)
    except SampleError:  # shapes that differ
        with pytest.raises(SampleError):
            decode_column(field, member_bytes(members))
    else:
        require_equal(decode_column(field, member_bytes(members)), expected)


def test_arrays_that_differ_in_their_headers_alone_are_not_mixed_up():
    members = [npy(np.array([1, 2], np.int32)), npy(np.array([1, 2], np.uint32))]
    assert len(members[0]) == len(members[1])
    with pytest.raises(SampleError, match=r"does not fit into one tensor"):
        decode_column(Field("x", ("a",), "npy"), member_bytes(members))


BAD = {
    "no number": ("int", b"seven"),
    "a number of 65 bits": ("int", b"18446744073709551616"),
    "no text": ("text", b"\xff"),
    "no JSON": ("json", b"{"),
    "an array that is cut": ("npy", npy(np.arange(9))[:-1]),
    "an array of pickled objects": ("npy", npy(np.zeros(3))[:6] + b"\x01\x00"),
    "an array of which one byte is left": ("npy", npy(np.arange(9))[: 1 - 72]),
    "half a number": ("uint16", b"123"),
    "no image": ("rgb", b"GIF"),
}


@pytest.mark.parametrize(("decoder", "member"), BAD.values(), ids=BAD)
def test_a_member_that_cannot_be_decoded_is_a_sample_error(decoder, member):
    good = {"int": b"1", "text": b"a", "json": b"1", "npy": npy(np.arange(9)), "uint16": b"12"}
    field = Field("x", ("a",), decoder)
    with pytest.raises(SampleError, match=r"field 'x' cannot be decoded|such numbers fit no int64"):
        decode_column(field, member_bytes([good.get(decoder, b""), member]))
