"""The kinds of compressed files, by their first bytes. A shard is never one: it is a plain tar."""

from typing import Final

LONGEST_MAGIC: Final = 6

_KINDS: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
}


def compression_of(first: bytes) -> str | None:
    """The kind of compression by the first `LONGEST_MAGIC` bytes of a file; None if there is none.

    >>> compression_of(b"BZh91A")
    'bzip2'
    """
    return next((kind for magic, kind in _KINDS.items() if first.startswith(magic)), None)
