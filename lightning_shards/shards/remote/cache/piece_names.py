"""The name of a piece in the cache: which object, which version of it, and which of its bytes."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from lightning_shards.shards.urls import without_credentials

_GROUP_DIGITS: Final = 16  # of the name of a folder
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


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
        """The name of the folder of all pieces of this version: hashes, without any credential.

        The first digits are the group.
        """
        return _folder_of(self.url, self.version)

    @property
    def name(self) -> str:
        """The name of the file in that folder."""
        return f"{self.begin}-{self.end}"


@lru_cache(maxsize=1024)  # a block has pieces of a few hundred shards, and is announced three times
def _folder_of(url: str, version: str) -> str:
    named = f"{without_credentials(url)}\n{version}"
    return _group(_stem_of(url)) + _hash(named)[_GROUP_DIGITS:]


def groups_of(urls: Iterable[str]) -> tuple[str, ...]:
    """The groups of the pieces of these shards: those are alike that differ in digits alone.

    A data set has one, as a rule: its shards lie in one folder and are numbered.

    >>> groups_of(f"s3://b/train-{number}.tar" for number in (0, 1, 23))
    ('02fdc9fe66627a79',)
    """
    return tuple(sorted(_group(stem) for stem in {_stem_of(url) for url in urls}))


def group_of(folder: str) -> str:
    """The group of the pieces in this folder."""
    return folder[:_GROUP_DIGITS]


def _stem_of(url: str) -> str:
    """The URL without credentials, and without the digits in the name of its file."""
    folder, slash, name = without_credentials(url).rpartition("/")
    return folder + slash + name.translate(_NO_DIGITS)


def _group(stem: str) -> str:
    return _hash(stem)[:_GROUP_DIGITS]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def share_of(folder: str, name: str) -> float:
    """A number from 0 to 1 that a piece has for ever, each number equally likely."""
    return int.from_bytes(hashlib.sha256(f"{folder}/{name}".encode()).digest()[:6]) / 2**48
