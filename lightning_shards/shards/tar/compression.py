"""The kinds of compressed files, by their first bytes. A shard is never one: it is a plain tar."""

import os
import re
import tarfile
from typing import Final

from lightning_shards.shards.files import open_regular

FIRST_BYTES: Final = 512
"""Bytes of the first header of a tar, which is compared before a name is taken for compression."""

_KINDS: Final = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),  # a block, or the end of an empty file
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstandard": re.compile(rb"\x28\xb5\x2f\xfd"),
}


def compression_of(first: bytes) -> str | None:
    """The kind of compression by the first `FIRST_BYTES` bytes of a file; None if there is none.

    A plain tar begins with the name of its first member, which may begin like any of these.

    >>> compression_of(b"BZh91AY&SY")
    'bzip2'
    """
    kind = next((kind for kind, magic in _KINDS.items() if magic.match(first)), None)
    return None if kind is None or is_tar_header(first) else kind


def compression_at(path: str) -> str | None:
    """The kind of compression of a file; None if there is none.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, or this user may not read it.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        return compression_of(file.read(FIRST_BYTES))


def is_tar_header(block: bytes) -> bool:
    """Whether a block of 512 bytes is a tar header whose checksum is right."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
