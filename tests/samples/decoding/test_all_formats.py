"""What decoding guarantees, in the names of its tests: it is equal to webdataset's."""

import gzip
import io
import json

import numpy as np
import pytest
import torch
from webdataset import autodecode

from lightning_shards.samples.fields import make_fields
from tests.samples.decoding.conftest import column_of

MEMBERS = {"__key__": "k", "__url__": "0.tar"}
ARRAYS = {
    "a": np.arange(6, dtype=np.int16).reshape(2, 3),
    "b": np.array(0.5, np.float32),
    "c": np.zeros((0, 4), np.uint8),
}


def saved(save, *arrays, **named):
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


FORMATS = {
    "npz": saved(np.savez, **ARRAYS),
    "left.npz": saved(np.savez_compressed, **ARRAYS),
    "npy": saved(np.save, ARRAYS["a"]),
    "txt": "größe".encode(),
    "transcript": b"a",
    "cls": b"7",
    "inx": b"8",
    "json": json.dumps([1, {"a": None}]).encode(),
}


def field_of(suffix, decoder=None):
    return make_fields({"x": suffix}, {"x": decoder} if decoder else {}, frozenset())[0]


def decode(suffix, data, decoder=None):
    return field_of(suffix, decoder).decode(MEMBERS | {suffix: data})


def plain(value):
    """A value whose equality is that of its types, shapes and bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    return list(map(plain, value)) if isinstance(value, list) else value


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_member_is_decoded_as_webdataset_does(suffix, packed):
    data = gzip.compress(FORMATS[suffix]) if packed else FORMATS[suffix]
    suffix += ".gz" * packed
    expected = autodecode.default_decoder({"__key__": "k", suffix: data})[suffix]
    decoded = decode(suffix, data)
    assert type(decoded) is type(expected)
    assert plain(decoded) == plain(expected)
    for array in decoded.values() if isinstance(decoded, dict) else [decoded]:
        assert not isinstance(array, np.ndarray) or array.flags.writeable
    column = column_of(field_of(suffix), [data, data])
    assert plain(list(column)) == [plain(expected)] * 2


@pytest.mark.parametrize("order", [np.ascontiguousarray, np.asfortranarray])
def test_arrays_of_any_byte_order_are_numbers_that_torch_has(order):
    big = order(ARRAYS["a"].astype(">i2"))
    for data in (saved(np.save, big), saved(np.savez, big)):
        value = decode("npz" if data.startswith(b"PK") else "npy", data)
        array = value["arr_0"] if isinstance(value, dict) else value
        assert array.flags.f_contiguous == big.flags.f_contiguous
        assert torch.as_tensor(array).tolist() == ARRAYS["a"].tolist()
    members = [saved(np.save, big), saved(np.save, ARRAYS["a"])]
    for column in ([members[0]] * 2, members):
        assert column_of(field_of("npy"), column).dtype == np.dtype("=i2")


def test_packed_bytes_stay_packed_where_they_are_wanted_raw():
    data = gzip.compress(b"abc")
    assert decode("txt.gz", data, "raw") == data
    assert decode("nii.gz", data, len) == 3
