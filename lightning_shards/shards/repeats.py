"""Keys that come again in a shard: another sample of that name, or the rest of a split one.

A sample is a run of adjacent members with one key. Where its members are apart, as where a tar was
appended to, readers would make several samples with different fields of it, and optional fields
would hide that. So a key that comes again with other suffixes alone is an error of training.
"""

from collections.abc import Iterable
from typing import Final, Literal

from lightning_shards.errors import SampleError
from lightning_shards.shards.urls import redact

_MOST_KEYS: Final = 100_000
"""Keys of a streamed shard that are remembered."""


class KnownKeys:
    """The suffixes that came with each key of a shard so far."""

    def __init__(self) -> None:
        self._suffixes: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._suffixes)

    def add(self, key: str, suffixes: Iterable[str]) -> Literal["", "split", "duplicate"]:
        """Note a sample; what it is if its key came before."""
        now, before = frozenset(suffixes), self._suffixes.get(key)
        self._suffixes[key] = now if before is None else before | now
        if before is None:
            return ""
        return "split" if before.isdisjoint(now) else "duplicate"


class StreamedKeys:
    """The keys of a shard that is streamed, as far as they are remembered."""

    def __init__(self, url: str) -> None:
        self._url, self._known = url, KnownKeys()

    def add(self, key: str, suffixes: list[str]) -> None:
        """Note the next sample.

        Raises:
            SampleError: It is the rest of a sample that came before.
        """
        if len(self._known) < _MOST_KEYS and self._known.add(key, suffixes) == "split":
            raise split_error(self._url, key, suffixes)


def split_error(url: str, key: str, suffixes: Iterable[str]) -> SampleError:
    """The error about a sample whose members are apart; these are the suffixes of its rest."""
    return SampleError(
        f"members of {key!r} are not adjacent in {redact(url)}: {', '.join(suffixes)} came after "
        "other samples, and would be a sample of its own; `lightning-shards reshard` joins them"
    )
