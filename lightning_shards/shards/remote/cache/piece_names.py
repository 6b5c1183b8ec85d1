"""The name of a piece in the cache: which object, which version of it, and which of its bytes."""

import hashlib
from functools import lru_cache
from typing import NamedTuple

from lightning_shards.shards.urls import without_credentials


class Piece(NamedTuple):
    """One range of bytes of one version of an object.

    Attributes:
        url: The object.
        version: Its version, as its store names it.
        begin: Offset of the first byte.
        end: Offset behind the last one.
    """

    url: str
    version: str
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of the piece."""
        return self.end - self.begin

    @property
    def folder(self) -> str:
        """The name of the folder of all pieces of this version: a hash, without any credential."""
        return _folder_of(self.url, self.version)

    @property
    def name(self) -> str:
        """The name of the file in that folder."""
        return f"{self.begin}-{self.end}"


@lru_cache(maxsize=1024)  # a block has pieces of a few hundred shards, and is announced three times
def _folder_of(url: str, version: str) -> str:
    named = f"{without_credentials(url)}\n{version}"
    return hashlib.sha256(named.encode(errors="surrogateescape")).hexdigest()


def share_of(folder: str, name: str) -> float:
    """A number from 0 to 1 that a piece has for ever, each number equally likely."""
    return int.from_bytes(_digest(folder, name)[:6]) / 2**48


def number_of(folder: str, name: str) -> int:
    """The number of a piece, below 2**48; two pieces have the same one as good as never."""
    return int.from_bytes(_digest(folder, name)[6:12])


def _digest(folder: str, name: str) -> bytes:
    return hashlib.sha256(f"{folder}/{name}".encode()).digest()
