"""What a filter asks of keys and ids: of all samples of a table, or of one sample of a stream."""

import hashlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.filters.keys import (
    HashParts,
    KeyList,
    content_of_lists,
    digests_of,
    first_unmatched,
    keys_of_table,
    prefix_of,
    read_key_list,
)
from lightning_shards.shards.filters.predicates import SampleFilter
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.urls import split_url

_SHOWN: Final = 80
"""Letters of a key that a message shows."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class KeyTests:
    """The parts and lists of a filter, ready to be asked.

    Attributes:
        names: File name of each shard.
        keep: Parts that are kept; None: all.
        exclude: Parts that are left out; None: none.
        lists: Lists of what is left out, by their paths.
        identity: Hash of what is asked, in whatever order lists have their keys.
        matched: For each list, which of its keys were found in a table, bool.
        prefixes: Prefixes of keys in the tables, if parts are made of them: until there are two.
        seen: The first key in the tables, for messages; empty if there is none.
    """

    names: Sequence[str]
    keep: HashParts | None
    exclude: HashParts | None
    lists: dict[str, KeyList]
    identity: str
    matched: dict[str, NDArray[np.bool_]] = field(default_factory=dict[str, NDArray[np.bool_]])
    prefixes: set[bytes] = field(default_factory=set[bytes])
    seen: list[bytes] = field(default_factory=list[bytes])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyTests) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def kept_of_table(self, shard: int, table: MemberTable) -> NDArray[np.bool_]:
        """Whether each sample of a shard is kept, shape (num_samples,); matches are noted."""
        mask = np.ones(table.num_samples, np.bool_)
        has_keys = any(len(listed.first) for listed in self.lists.values())
        if self.keep is not None or self.exclude is not None or has_keys:
            keys = keys_of_table(table)
            mask &= self._kept_keys(keys)
            if not self.seen:
                self.seen.extend(keys[:1])
            if self._of_prefixes and len(self.prefixes) <= 1:
                self.prefixes.update(map(prefix_of, keys))
        for listed in self.lists.values():
            mask[listed.numbers.get(self.names[shard], np.empty(0, np.int64))] = False
        return mask

    def keeps(self, shard: int, sample: int, key: str) -> bool:
        """Whether one sample is kept."""
        for listed in self.lists.values():
            numbers = listed.numbers.get(self.names[shard])
            if numbers is not None and (numbers == sample).any():
                return False
        return bool(self._kept_keys([key.encode("utf-8", "surrogateescape")])[0])

    def require_matches(self) -> None:
        """Refuse lists of which nothing was found in any table, and log how much was not.

        Raises:
            ConfigError: There is such a list.
        """
        for path, listed in self.lists.items():
            of_keys = self.matched.get(path, np.empty(0, np.bool_))
            num_ids = sum(map(len, listed.numbers.values()))
            num_found = int(np.count_nonzero(of_keys))
            if not len(listed.first) and not num_ids:
                raise ConfigError(
                    f"exclude: {path} has no line with a key or an id; leave the list out until "
                    "there is something in it"
                )
            if num_found == len(listed.first):
                continue
            unlike = self._unlike(first_unmatched(path, listed, of_keys))
            if not num_found and not num_ids:
                raise ConfigError(
                    f"exclude: none of the {count_of(len(listed.first), 'key')} of {path} is the "
                    f"key of a sample of this split: {unlike}; write keys with folders and without "
                    "suffixes, as `lightning-shards show` does, or leave the list out; in a mix, "
                    "write it into those components alone whose samples it names"
                )
            what = (
                "exclude: %s of %s keys of %s are of no sample of this split, so nothing is "
                "left out for them: %s; keys have folders and no suffixes"
            )
            missing = len(listed.first) - num_found
            _log.warning(what, f"{missing:,}", f"{len(listed.first):,}", path, unlike)

    def _unlike(self, key: bytes) -> str:
        """A key that is of no sample, beside one that is."""
        shown = [repr(os.fsdecode(each)[:_SHOWN]) for each in (key, *self.seen)]
        return f"the first of them is {', the first key of the samples '.join(shown)}"

    def warn_of_one_prefix(self, samples: int) -> None:
        """Say so where parts are made of prefixes, and the samples of all tables have the same."""
        if samples > 1 and len(self.prefixes) == 1:
            what = (
                "%s: hash_of 'prefix' takes all samples of this split or none, as all %s have the "
                "prefix %r, which is what is before the first dot of a key; take hash_of 'key', or "
                "give the folders in the shards other names"
            )
            prefix = os.fsdecode(next(iter(self.prefixes)))
            _log.warning(what, " and ".join(self._of_prefixes), f"{samples:,}", prefix)

    @property
    def _of_prefixes(self) -> list[str]:
        """The settings that make parts of prefixes."""
        parts = {"keep": self.keep, "exclude": self.exclude}
        return [name for name, given in parts.items() if given and given.hash_of == "prefix"]

    def _kept_keys(self, keys: list[bytes]) -> NDArray[np.bool_]:
        mask = np.ones(len(keys), np.bool_)
        if self.keep is not None:
            mask &= self.keep.has(keys)
        if self.exclude is not None:
            mask &= ~self.exclude.has(keys)
        if self.lists:
            digests = digests_of(keys)
            for path, listed in self.lists.items():
                found = listed.find(digests)
                self.matched.setdefault(path, np.zeros(len(listed.first), np.bool_))
                self.matched[path][found[found >= 0]] = True
                mask &= found < 0
        return mask


def read_key_tests(chosen: SampleFilter, index: ShardIndex) -> KeyTests:
    """The parts of a filter that ask for keys and ids, with its lists read.

    Raises:
        ConfigError: A list cannot be read, or names shards and samples that are not there.
    """
    keep = chosen.keep if isinstance(chosen.keep, HashParts) else None
    exclude = chosen.exclude if isinstance(chosen.exclude, HashParts) else None
    names = [split_url(url)[1] for url in index.urls]
    lists = {path: read_key_list(path, *names[:1]) for path in chosen.lists}
    for path, listed in lists.items():
        _require_ids(listed, path, names, index)
    asked = f"{keep!r}\n{exclude!r}\n{content_of_lists(lists.values())}"
    return KeyTests(names, keep, exclude, lists, hashlib.sha256(asked.encode()).hexdigest())


def _require_ids(listed: KeyList, path: str, names: Sequence[str], index: ShardIndex) -> None:
    """Refuse ids of shards and samples that are not there, or of more than one shard."""
    if not listed.numbers:
        return
    shards: dict[str, int] = {}
    for number, name in enumerate(names):
        first = shards.setdefault(name, number)
        if name in listed.numbers and index.urls[first] != index.urls[number]:
            raise ConfigError(
                f"exclude: {path} names samples of {name!r}, and two shards in different folders "
                "have that file name; name these samples by their keys"
            )
    for name, numbers in listed.numbers.items():
        if name not in shards:
            raise ConfigError(
                f"exclude: {path} names samples of {name!r}, and no shard of this split has that "
                f"file name, the first one is {names[0]!r}; take these lines out, or put "
                "them into the list of another split or component"
            )
        count = None if index.counts is None else int(index.counts[shards[name]])
        if count is not None and numbers[-1] >= count:
            raise ConfigError(
                f"exclude: {path} names sample {numbers[-1]} of {name!r}, which holds "
                f"{count_of(count, 'sample')}, counted from 0; correct that line"
            )
