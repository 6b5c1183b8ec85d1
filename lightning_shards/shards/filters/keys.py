"""What a filter asks of keys and ids: of all samples of a table, or of one sample of a stream.

A list is a text file with a key, or the id of a sample, on each line. A line is a key as it is in
the tar; or `#FILE:NUMBER`, the sample with this number (from 0) in the shard with this file name. A
key that begins with `#` or a backslash has a backslash before it. Empty lines are passed over.

A list of 10^7 keys takes 160 MB as it is held, and four times as much while it is read: of each
key 16 bytes of its SHA-256 are kept. That another key has the same ones is out of the question.
"""

import hashlib
import logging
import os
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.filters.predicates import keys_of_table
from lightning_shards.shards.filters.settings import (
    HashParts,
    SampleFilter,
    digests_of,
    open_list,
    prefix_of,
)
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.urls import split_url

_Words = NDArray[np.uint64]
_Ints = NDArray[np.int64]

_ID_MARK: Final = b"#"
_ESCAPED: Final = (b"\\#", b"\\\\")
_HEAD_BYTES: Final = 64
_SHOWN: Final = 80
"""Letters of a key that a message shows."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class KeyList:
    """Keys by their digests, and samples by shard and number.

    Attributes:
        path: Where they were read.
        digests: Of the keys, ascending, each once: uint64, shape (2, n).
        numbers: By file name of a shard, the numbers of samples in it, int64, ascending.
        matched: Which of the keys were found in a table so far, bool.
    """

    path: str
    digests: _Words
    numbers: Mapping[str, _Ints]
    matched: NDArray[np.bool_]

    def has(self, digests: _Words) -> NDArray[np.bool_]:
        """Whether each key with one of these digests is in the list, which notes it as matched."""
        if not len(self.matched):
            return np.zeros(len(digests[0]), np.bool_)
        places = self._places(digests)
        places[places == len(self.matched)] = 0
        is_listed = (self.digests[:, places] == digests).all(axis=0)
        self.matched[places[is_listed]] = True
        return is_listed

    @property
    def num_ids(self) -> int:
        """Samples that it names by shard and number."""
        return sum(map(len, self.numbers.values()))

    def first_unmatched(self) -> bytes:
        """The first key of the file that was found in no table; there is one."""
        for entry in _entries(self.path):
            if entry[:1] != _ID_MARK and not self.matched[self._places(digests_of([_key(entry)]))]:
                return _key(entry)
        return b""  # the file has changed meanwhile

    def _places(self, digests: _Words) -> _Ints:
        listed: _Words = self.digests[0]
        asked: _Words = digests[0]
        return np.searchsorted(listed, asked)


def read_key_list(path: str, shard_name: str = "") -> KeyList:
    """The keys and ids in a file; `shard_name` is that of some shard, for messages.

    Raises:
        ConfigError: The file cannot be read, or a line is no id although it begins like one.
    """
    numbers: defaultdict[str, list[int]] = defaultdict(list)

    def keys() -> Iterator[bytes]:
        for entry in _entries(path):
            if entry[:1] == _ID_MARK:
                name, number = _parse_id(entry, path, shard_name)
                numbers[name].append(number)
            else:
                yield _key(entry)

    digests = _different(digests_of(keys()))
    by_name = {name: np.unique(np.array(listed, np.int64)) for name, listed in numbers.items()}
    return KeyList(path, digests, by_name, np.zeros(len(digests[0]), np.bool_))


def _different(digests: _Words) -> _Words:
    """These digests in ascending order, each once."""
    return digests[:, np.unique(digests[0], return_index=True)[1]]


def _entries(path: str) -> Iterator[bytes]:
    """The lines of a list that are not empty."""
    with os.fdopen(open_list(path), "rb") as file:
        head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]
        if head.startswith((BOM_UTF16_BE, BOM_UTF16_LE)) and b"\0" in head:  # as no key has
            raise ConfigError(f"exclude: {path} is written in UTF-16; write it in UTF-8")
        file.seek(len(BOM_UTF8) if head.startswith(BOM_UTF8) else 0)
        yield from filter(None, (line.rstrip(b"\r\n") for line in file))


def _key(entry: bytes) -> bytes:
    """The key of a line, without the backslash that takes the meaning of a mark."""
    return entry[1:] if entry[:2] in _ESCAPED else entry


def _parse_id(entry: bytes, path: str, shard_name: str) -> tuple[str, int]:
    name, _, number = entry[1:].rpartition(b":")
    if not name or not number.isdigit() or len(number) > 18:  # noqa: PLR2004 of int64
        as_in = f", as in #{shard_name}:0" if shard_name else ""
        raise ConfigError(
            f"exclude: {path} has the line {os.fsdecode(entry)!r}, which begins with # and is no "
            f"#SHARD-FILE-NAME:NUMBER{as_in}; put a backslash before a key that begins with #"
        )
    return os.fsdecode(name), int(number)


@dataclass(frozen=True)
class KeyTests:
    """The parts and lists of a filter, ready to be asked.

    Attributes:
        names: File name of each shard.
        parts: Parts by hash, by `keep` and `exclude`.
        lists: Lists of what is left out.
        identity: Hash of what is asked, in whatever order lists have their keys.
        prefixes: Prefixes of keys in the tables, if parts are made of them: until there are two.
        seen: The first key in the tables, for messages; empty if there is none.
    """

    names: Sequence[str] = field(compare=False)
    parts: Mapping[str, HashParts] = field(compare=False)
    lists: Sequence[KeyList] = field(compare=False)
    identity: str
    prefixes: set[bytes] = field(default_factory=set[bytes], compare=False)
    seen: list[bytes] = field(default_factory=list[bytes], compare=False)

    def kept_of_table(self, shard: int, table: MemberTable) -> NDArray[np.bool_]:
        """Whether each sample of a shard is kept, shape (num_samples,); matches are noted."""
        mask = np.ones(table.num_samples, np.bool_)
        if self.parts or self.lists:
            keys = keys_of_table(table)
            mask = self._kept_keys(keys)
            self.seen.extend(() if self.seen else keys[:1])
            if self._of_prefixes and len(self.prefixes) <= 1:
                self.prefixes.update(map(prefix_of, keys))
        for listed in self.lists:
            mask[listed.numbers.get(self.names[shard], np.empty(0, np.int64))] = False
        return mask

    def keeps(self, shard: int, sample: int, key: str) -> bool:
        """Whether one sample is kept."""
        numbers = (listed.numbers.get(self.names[shard], ()) for listed in self.lists)
        is_named = any(sample in of_shard for of_shard in numbers)
        return not is_named and bool(self._kept_keys([key.encode("utf-8", "surrogateescape")])[0])

    def require_matches(self) -> None:
        """Refuse lists of which nothing was found in any table, and log how much was not.

        Raises:
            ConfigError: There is such a list.
        """
        for listed in self.lists:
            num_keys, num_found = len(listed.matched), int(np.count_nonzero(listed.matched))
            if not num_keys and not listed.num_ids:
                raise ConfigError(
                    f"exclude: {listed.path} has no line with a key or an id; leave the list out "
                    "until there is something in it"
                )
            if num_found == num_keys:
                continue
            unlike = (listed.first_unmatched(), *self.seen)
            unlike = " the first key of the samples ".join(
                f"{os.fsdecode(key)[:_SHOWN]!r}," for key in unlike
            ).removesuffix(",")
            if not num_found and not listed.num_ids:
                raise ConfigError(
                    f"exclude: none of the {count_of(num_keys, 'key')} of {listed.path} is the key "
                    f"of a sample of this split: the first of them is {unlike}; write keys with "
                    "folders and without suffixes, as `lightning-shards show` does, or leave the "
                    "list out; in a mix, write it into those components alone whose samples it "
                    "names"
                )
            what = (
                "exclude: %s of %s keys of %s are of no sample of this split, so nothing is "
                "left out for them: the first of them is %s; keys have folders and no suffixes"
            )
            missing = num_keys - num_found
            _log.warning(what, f"{missing:,}", f"{num_keys:,}", listed.path, unlike)

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
        return [name for name, parts in self.parts.items() if parts.hash_of == "prefix"]

    def _kept_keys(self, keys: list[bytes]) -> NDArray[np.bool_]:
        mask = np.ones(len(keys), np.bool_)
        for name, parts in self.parts.items():
            mask &= parts.has(keys) == (name == "keep")
        digests = digests_of(keys if self.lists else ())
        for listed in self.lists:
            mask &= ~listed.has(digests)
        return mask


def read_key_tests(chosen: SampleFilter, index: ShardIndex) -> KeyTests:
    """The parts of a filter that ask for keys and ids, with its lists read.

    Raises:
        ConfigError: A list cannot be read, or names shards and samples that are not there.
    """
    names = [split_url(url)[1] for url in index.urls]
    lists = [read_key_list(path, *names[:1]) for path in chosen.lists]
    for listed in lists:
        _require_ids(listed, names, index)
    keep, exclude = map(chosen.parts.get, ("keep", "exclude"))
    asked = f"{keep!r}\n{exclude!r}\n{_content_of(lists)}"
    return KeyTests(names, chosen.parts, lists, hashlib.sha256(asked.encode()).hexdigest())


def _content_of(lists: Iterable[KeyList]) -> str:
    """A hash of what is in these lists together, in whatever order, in hex digits."""
    digests, numbers = [np.empty((2, 0), np.uint64)], defaultdict[str, list[_Ints]](list)
    for listed in lists:
        digests.append(listed.digests)
        for name, of_shard in listed.numbers.items():
            numbers[name].append(of_shard)
    content = hashlib.sha256(_different(np.concatenate(digests, axis=1)).tobytes())
    for name, parts in sorted(numbers.items()):
        of_shard = np.unique(np.concatenate(parts))
        content.update(os.fsencode(f"{name}\0{len(of_shard)}\0") + of_shard.tobytes())
    return content.hexdigest()


def _require_ids(listed: KeyList, names: Sequence[str], index: ShardIndex) -> None:
    """Refuse ids of shards and samples that are not there, or of more than one shard."""
    counts_of: defaultdict[str, dict[str, int]] = defaultdict(dict)  # by name, then by URL
    counts = [-1] * len(names) if index.counts is None else index.counts.tolist()
    for name, url, count in zip(names, index.urls, counts, strict=True) if listed.numbers else ():
        counts_of[name][url] = count
    for name, numbers in listed.numbers.items():
        found = list(counts_of.get(name, {}).values())
        if not found:
            raise ConfigError(
                f"exclude: {listed.path} names samples of {name!r}, and no shard of this split has "
                f"that file name, the first one is {names[0]!r}; take these lines out, or put "
                "them into the list of another split or component"
            )
        if len(found) > 1:
            raise ConfigError(
                f"exclude: {listed.path} names samples of {name!r}, and two shards in different "
                "folders have that file name; name these samples by their keys"
            )
        if 0 <= found[0] <= numbers[-1]:
            raise ConfigError(
                f"exclude: {listed.path} names sample {numbers[-1]} of {name!r}, which holds "
                f"{count_of(found[0], 'sample')}, counted from 0; correct that line"
            )
