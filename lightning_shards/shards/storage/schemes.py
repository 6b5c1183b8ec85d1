"""Which storage reads the shards of which URL: one table, and the questions that it answers."""

from collections.abc import Callable, Mapping
from typing import Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.storage.fetching import CommandStorage
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import Storage
from lightning_shards.shards.urls import ALLOWED_SCHEMES, redact, scheme_of

MakeStorage = Callable[[], Storage]

STORAGES: Final[Mapping[str, type[Storage]]] = {
    **dict.fromkeys((*ALLOWED_SCHEMES, "pipe"), CommandStorage),
    "": LocalStorage,
    "file": LocalStorage,
}
"""The storage of each scheme that the package knows; that of a plain path is empty."""


class Storages:
    """The storages of one reader, each made with the first URL of its scheme.

    Args:
        given: Storages of schemes that the package does not know or that are read in another way:
            scheme, without a colon, to a picklable callable that makes one.
    """

    def __init__(self, given: Mapping[str, MakeStorage] | None = None) -> None:
        self._makers: dict[str, MakeStorage] = {**STORAGES, **(given or {})}
        self._made: dict[str, Storage] = {}

    def of(self, url: str) -> Storage:
        """The storage that reads this URL.

        Raises:
            ConfigError: There is none for its scheme.
        """
        scheme = scheme_of(url)
        if scheme not in self._made:
            if scheme not in self._makers:
                raise ConfigError(
                    f"no storage reads {redact(url)!r}; known schemes are "
                    f"{', '.join(filter(None, self._makers))}; name one for {scheme!r} in storages"
                )
            self._made[scheme] = self._makers[scheme]()
        return self._made[scheme]


def has_ranges(url: str) -> bool:
    """Whether any sample of this shard can be read; if not, it can only be streamed."""
    scheme = scheme_of(url)
    return scheme in STORAGES and STORAGES[scheme].has_ranges
