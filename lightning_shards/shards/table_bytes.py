"""A member table as bytes: the file in the cache (sidecar), and the file beside a remote shard.

The format of a sidecar, all numbers little-endian::

    magic 8 · version u4 · crc32 of all that follows u4 · length of the JSON in bytes u8
    JSON: sizes of the arrays, stamp of the shard, suffixes; filled up with spaces to 8 bytes
    the arrays of `MemberTable`, widest items first, so that each one is aligned

The published form, `<shard>.members` beside the shard, is a sidecar compressed with zlib. The time
of change in its stamp is 0, because another machine would give its copy of the shard another one.
"""

import json
import mmap
import struct
import zlib
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.members import ARRAY_FIELDS, MemberTable
from lightning_shards.shards.urls import BEFORE_QUERY, is_local

MAX_PUBLISHED_BYTES: Final = 1 << 30
"""Bytes of a published table at most; of 10^7 small members it has about 200 MB."""

_MAGIC: Final = b"LSmember"
_VERSION: Final = 2
_PREFIX: Final = struct.Struct("<8sIIQ")
_CHECKED_FROM: Final = 16  # the checksum covers the last number of the prefix and all after it
_ALIGNMENT: Final = 8


def published_url(url: str) -> str:
    """Where the published table of a shard lies; the query of a remote shard's URL is kept.

    A `#` or `?` in a path, or in the name of a file, belongs to that name.

    >>> published_url("https://host/000.tar?sig=1"), published_url("s3://bucket/000.tar")
    ('https://host/000.tar.members?sig=1', 's3://bucket/000.tar.members')
    >>> published_url("data/a#1.tar"), published_url("a:b?.tar")
    ('data/a#1.tar.members', 'a:b?.tar.members')
    """
    if is_local(url) or "://" not in url:  # a name with a colon in it is no URL
        return f"{url}.members"
    return BEFORE_QUERY.sub(".members", url, count=1)


def published(table: MemberTable) -> bytes:
    """The table as it lies beside a shard."""
    return zlib.compress(packed(replace(table, mtime_ns=0)))


def unpublished(data: bytes) -> MemberTable:
    """The table in the published form.

    Raises:
        ValueError: The bytes are damaged, or are no member table.
    """
    if len(data) > MAX_PUBLISHED_BYTES:
        raise ValueError(f"it has more than {MAX_PUBLISHED_BYTES:,} bytes")
    try:
        return unpacked(zlib.decompress(data))
    except zlib.error as error:
        raise ValueError(f"it is not whole, or no compressed table: {error}") from error


def packed(table: MemberTable) -> bytearray:
    """The contents of the sidecar."""
    facts = {
        "num_samples": table.num_samples,
        "num_members": len(table.offsets),
        "key_bytes": len(table.keys),
        "file_size": table.file_size,
        "mtime_ns": table.mtime_ns,
        "has_crc32": table.crc32 is not None,
        "split_sample": table.split_sample,
        "suffixes": table.suffixes,
    }
    header = json.dumps(facts).encode("ascii")
    header += b" " * (-len(header) % _ALIGNMENT)
    values = [
        np.asarray(getattr(table, name), dtype).tobytes() for name, dtype, _ in _columns(facts)
    ]
    data = bytearray(_PREFIX.pack(_MAGIC, _VERSION, 0, len(header)) + header + b"".join(values))
    _PREFIX.pack_into(data, 0, _MAGIC, _VERSION, crc32(data[_CHECKED_FROM:]), len(header))
    return data


def _columns(facts: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Name, type and length of the arrays in a sidecar, in their order."""
    samples, members = facts["num_samples"], facts["num_members"]
    kinds = {
        "key_starts": ("<i8", samples + 1),
        "sample_starts": ("<i8", samples + 1),
        "offsets": ("<i8", members),
        "sizes": ("<i8", members),
        "suffix_ids": ("<u4", members),
        "crc32": ("<u4", members),
        "keys": ("|u1", facts["key_bytes"]),
    }
    return [(name, *kinds[name]) for name in ARRAY_FIELDS if name != "crc32" or facts["has_crc32"]]


def unpacked(data: mmap.mmap | bytes) -> MemberTable:
    """The table in these bytes, whose checksum is compared.

    Raises:
        ValueError: They are damaged, or are no member table.
    """
    if len(data) < _PREFIX.size:
        raise ValueError("it is cut short")
    magic, version, checksum, header_bytes = _PREFIX.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError("it is of another version, or no member table")
    if crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise ValueError("it is damaged: its checksum does not match")
    position = _PREFIX.size + header_bytes
    facts = json.loads(data[_PREFIX.size : position])
    arrays: dict[str, Any] = {"crc32": None, "suffixes": tuple(facts["suffixes"])}
    for name, kind, length in _columns(facts):
        values = np.frombuffer(data, kind, length, position)
        position += values.nbytes
        arrays[name] = values.astype(values.dtype.newbyteorder("="), copy=False)
    others = {name: facts[name] for name in ("file_size", "mtime_ns", "split_sample")}
    return MemberTable(**arrays, **others)
