"""Bytes made to break a decoder become the error of a sample, whatever the decoder raised."""

import gzip
import io
import resource
import struct
import zipfile

import numpy as np
import pytest

from lightning_shards.errors import SampleError
from lightning_shards.samples import decoders
from lightning_shards.samples.fields import make_fields
from tests.samples.decoding.conftest import column_of, png_of

MEMBERS = {"__key__": "k", "__url__": "0.tar"}


BOMB = bytes(2**26)
"""Packed it is small; decoders may unpack 2**22 bytes of it here."""
PACKED_BOMB = gzip.compress(BOMB, 1)


def npy(header, data=b"", version=1):
    text = header.encode() + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def header(shape, kind="<f4"):
    return f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}"


def npz(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays or {"a": np.zeros(2)})
    return file.getvalue()


def zip_of(*entries):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return file.getvalue()


def lying_npz(claim=50):
    """One that says `claim` bytes of an entry, and unpacks to more."""
    data = bytearray(zip_of(("a.npy", BOMB)))
    for place in (data.index(b"PK\1\2") + 24, data.index(b"PK\3\4") + 22):
        data[place : place + 4] = struct.pack("<I", claim)
    return bytes(data)


HOSTILE = {
    "an archive": ("npy", npz(), r"an archive \(\.npz\): decode it as 'npz'"),
    "a pickle": ("npy", b"\x80\x04N.", "no .npy file"),
    "a huge array": ("npy", npy(header((1 << 40,))), "decoded as 'npy'"),
    "deep header": ("npy", npy("(" * 9000), "decoded as 'npy'"),
    "cut": ("npy", b"\x93NUMPY\x01", "decoded as 'npy'"),
    "deep json": ("json", b"[" * 200_000, "decoded as 'json'"),
    "large class": ("cls", b"1" * 40, "fits no int64"),
    "a class with an underscore": ("cls", b"1_23", "an underscore, .* decode: {x: text}"),
    "no utf-8": ("txt", b"\xff\xfe\x00", "decoded as 'text'"),
    "an npz of a pickle": ("npz", npz(a=np.array([{}], object)), "allow_pickle"),
    "an npz bomb": ("npz", zip_of(*[(f"{n}.npy", BOMB[:-n]) for n in (1, 2)]), "more than 4194304"),
    "an npz that lies": ("npz", lying_npz(), "decoded as 'npz'"),
    "a .gz bomb": ("txt.gz", PACKED_BOMB, "holds more than 4194304 bytes"),
    "a cut .gz": ("npy.gz", gzip.compress(npy(header((2,)), bytes(8)))[:-9], "is damaged"),
    "a spoilt .gz": ("txt.gz", gzip.compress(b"abc")[:-8] + bytes(8), "is damaged"),
    "an empty .gz": ("txt.gz", b"", "its .gz is empty"),
    "a bomb": ("png", png_of(30_000, 30_000, 1, bytes(99)), "for field 'x'"),
    "a pixel too many": ("png", png_of(10_000, 8_948, 1, bytes(99)), "more than 89478485"),
}


def field_of(suffix):
    return make_fields({"x": suffix}, {}, frozenset())[0]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("suffix", "data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_the_error_of_a_sample(suffix, data, message, monkeypatch):
    monkeypatch.setattr(decoders, "MOST_UNPACKED_BYTES", 2**22)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    with pytest.raises(SampleError, match=message):
        field_of(suffix).decode(MEMBERS | {suffix: data})
    with pytest.raises(SampleError):
        column_of(field_of(suffix), [data, data])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 2**15
