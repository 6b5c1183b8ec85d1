"""Decoders of compressed members, with bounded output: `.gz`, and the archives `.npz` of numpy."""

import zlib
from gzip import GzipFile
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from lightning_shards.samples.decoding.arrays import decode_npy

MOST_UNPACKED_BYTES = 2**30
"""A member that unpacks to more is taken for a bomb: a file made to fill the memory."""

MOST_OBJECT_BYTES = 2**25
"""The same of what becomes Python objects: they take up to 24 times the bytes of JSON."""

_PIECE = 2**20
"""Bytes that are unpacked at once."""

_NPY = ".npy"


def gunzip(data: bytes, most: int) -> bytes:
    """The bytes in a .gz file, of all its streams.

    Raises:
        ValueError: It is no such file, is empty, cut or damaged, or holds more than `most` bytes.
    """
    if not data:  # gzip takes it for no stream, and gives no bytes
        raise ValueError("its .gz is empty")
    unpacked = bytearray()
    try:
        with GzipFile(fileobj=BytesIO(data)) as file:
            while piece := file.read(_PIECE):
                unpacked += piece
                if len(unpacked) > most:
                    raise ValueError(f"its .gz holds more than {most} bytes")
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"its .gz is damaged: {error}") from error
    return bytes(unpacked)


def decode_npz(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays in an .npz archive, by name; pickled objects are refused."""
    try:
        with ZipFile(BytesIO(data)) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if size > MOST_UNPACKED_BYTES:
                raise ValueError(f"its arrays are {size} bytes, more than {MOST_UNPACKED_BYTES}")
            methods = {entry.compress_type for entry in entries} - {ZIP_STORED, ZIP_DEFLATED}
            if methods:  # zipfile unpacks others without a bound
                raise ValueError(f"it is compressed by method {min(methods)}, unknown to numpy")
            arrays: dict[str, np.ndarray] = {}
            for entry in entries:
                with archive.open(entry) as file:
                    # with its size: otherwise more than that might be unpacked
                    arrays[entry.filename.removesuffix(_NPY)] = decode_npy(
                        file.read(entry.file_size)
                    )
    except BadZipFile as error:
        raise ValueError(f"this is no whole archive (.npz): {error}") from error
    return arrays
