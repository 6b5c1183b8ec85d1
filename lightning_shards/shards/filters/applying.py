"""A filter applied to shards: the index of what is left of them.

The first run with a filter reads the member tables of all shards, in one process of each node, and
hashes keys where the filter asks for it, which takes about a microsecond a sample. What is left is
kept in the cache as a .npy file with two bits for each sample, which each process maps. Its name
has all that its content depends on, the stamps of the shards too, so that it is never another one
while a run reads it.

A list is a text file with a key, or the id of a sample, on each line. A line is a key as it is in
the tar; or `#FILE:NUMBER`, the sample with this number (from 0) in the shard with this file name. A
key that begins with `#` or a backslash has a backslash before it. Empty lines are passed over.
"""

import hashlib
import logging
import os
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.plan.kept_order import (
    HeldNumbers,
    KeptSamples,
    Numbers,
    kept_samples,
    pack_masks,
)
from lightning_shards.shards.files import stamp_of
from lightning_shards.shards.filters.predicates import (
    ShardColumns,
    digest_of_predicate,
    keys_of_table,
    mask_of,
)
from lightning_shards.shards.filters.settings import HashParts, SampleFilter, open_list
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder, MappedNumbers, sidecar_name
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact, split_url

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]

_FETCHED_TOGETHER: Final = 64
_VERSION: Final = 4
"""Of what a filter does; what was kept by another one is not used."""

_ID_MARK: Final = b"#"
_ESCAPED: Final = (b"\\#", b"\\\\")
_DIGEST_BYTES: Final = 16
_SHOWN: Final = 80
"""Letters of a key that a message shows."""


def filtered_index(
    index: ShardIndex, chosen: SampleFilter, tables: TableStore, cache: CacheFolder
) -> ShardIndex:
    """The index of these shards, which knows what the filter leaves of them.

    Args:
        index: The shards and their counts, which are known.
        chosen: The filter.
        tables: Where the member tables of all shards are, or come from.
        cache: Where it is kept what is left.

    Raises:
        ConfigError: The filter names what is not there, leaves nothing, or cannot be applied.
        ShardError: As of `TableStore.table_of`.
    """
    assert index.counts is not None  # the caller has seen to it
    remote = [url for url in index.urls if not is_local(url)]
    for first in range(0, len(remote), _FETCHED_TOGETHER):  # their stamps are those of the tables
        tables.fetch(remote[first : first + _FETCHED_TOGETHER])
    path = cache.root / "kept" / f"{digest_with_shards(_digest(chosen), index, cache)}.npy"
    kept = _read(path, index.counts, cache)
    if kept is None:
        words = _written(path, _applied(index, index.counts, chosen, tables), cache)
        kept = kept_samples(index.counts, words)
    return replace(index, kept=kept)


def digest_with_shards(digest: str, index: ShardIndex, cache: CacheFolder) -> str:
    """A hash of this one, the shards, and what shows that one, or its table, is another now."""
    hashed = hashlib.sha256(digest.encode())
    counts = [None] * index.num_shards if index.counts is None else index.counts.tolist()
    for url, count in zip(index.urls, counts, strict=True):
        try:
            stamp = stamp_of(url if is_local(url) else cache.sidecar_of(url))
        except OSError:
            stamp = None  # a local shard that is missing is an error elsewhere
        hashed.update(os.fsencode(f"\n{sidecar_name(url)} {count} {stamp}"))
    return hashed.hexdigest()[:32]


def _digest(chosen: SampleFilter) -> str:
    """A hash of the lists, the parts and the predicate, which may change its own values later."""
    predicate = chosen.predicate
    asked = digest_of_predicate(predicate) if predicate is not None else None
    return f"{_VERSION} {chosen.parts!r} {chosen.digest_of_lists()} {asked}"


def _applied(
    index: ShardIndex, totals: NDArray[np.int64], chosen: SampleFilter, tables: TableStore
) -> NDArray[np.int64]:
    tests, predicate = read_key_tests(chosen, index), chosen.predicate
    folders = {redact(split_url(url)[0]) for url in index.urls}
    where = folders.pop() if len(folders) == 1 else f"{len(folders)} folders"

    def masks(step: Callable[[], object]) -> Iterator[NDArray[np.bool_]]:
        for shard, (url, total) in enumerate(zip(index.urls, totals.tolist(), strict=True)):
            table = tables.table_of(url, expected_samples=total)
            mask = tests.kept_of_table(shard, table)
            if predicate is not None and total:
                mask &= mask_of(predicate, ShardColumns(url, table))
            yield mask
            step()

    with progress_line("filtered", index.num_shards, where) as step:
        words = pack_masks(masks(step))
    tests.require_matches()
    samples = count_of(int(totals.sum()), "sample")
    if not words[0, -1]:
        shards = count_of(index.num_shards, "shard")
        raise ConfigError(
            f"{chosen.names} leaves none of {samples} of {shards}; correct it, or leave it out"
        )
    _log.info("%s: %s of %s are left", chosen.names, f"{words[0, -1]:,}", samples)
    return words


def _written(path: Path, words: NDArray[np.int64], cache: CacheFolder) -> Numbers:
    """The words, which are taken from a file from now on; held if it cannot be written."""
    file = BytesIO()
    np.save(file, words)
    try:
        cache.write(path, file.getvalue())
    except OSError as error:
        _log.warning(
            "which samples are left stays in memory, and is found out again by each rank and the "
            "next run: %s; name another cache_dir",
            error,
        )
        return HeldNumbers(words)
    return MappedNumbers(path)


def _read(path: Path, totals: NDArray[np.int64], cache: CacheFolder) -> KeptSamples | None:
    """What the file says is left of these shards; None if there is none, or it is damaged."""
    opened = cache.open(path)
    if opened is None:
        return None
    os.close(opened)
    try:
        return kept_samples(totals, MappedNumbers(path))
    except (OSError, EOFError, ValueError) as error:
        _log.warning("which samples are left is found out again: %s: %s", path, error)
        return None


@dataclass(frozen=True, slots=True, eq=False)
class KeyList:
    """A list of what is left out.

    Attributes:
        path: Where it was read.
        keys: The keys, each once, as a dict that keeps their order.
        numbers: By file name of a shard, the numbers of samples in it, int64, ascending.
        matched: Keys that were found in a table so far.
    """

    path: str
    keys: Mapping[bytes, None]
    numbers: Mapping[str, _Ints]
    matched: set[bytes]


def read_key_list(path: str, shard_name: str = "") -> KeyList:
    """The keys and ids in a file; `shard_name` is that of some shard, for messages.

    Raises:
        ConfigError: The file cannot be read, or a line is no id although it begins like one.
    """
    keys, numbers = dict[bytes, None](), defaultdict[str, list[int]](list)
    with os.fdopen(open_list(path), "rb") as file:
        file.seek(len(BOM_UTF8) if file.peek().startswith(BOM_UTF8) else 0)
        for entry in filter(None, (line.rstrip(b"\r\n") for line in file)):
            if entry[:1] == _ID_MARK:
                name, number = _parse_id(entry, path, shard_name)
                numbers[name].append(number)
            else:
                keys[entry[1:] if entry[:2] in _ESCAPED else entry] = None
    by_name = {name: np.unique(np.array(listed, np.int64)) for name, listed in numbers.items()}
    return KeyList(path, keys, by_name, set())


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
        seen: The first key in the tables, for messages; empty if there is none.
    """

    names: Sequence[str] = field(compare=False)
    parts: Mapping[str, HashParts] = field(compare=False)
    lists: Sequence[KeyList] = field(compare=False)
    identity: str
    seen: list[bytes] = field(default_factory=list[bytes], compare=False)

    def kept_of_table(self, shard: int, table: MemberTable) -> NDArray[np.bool_]:
        """Whether each sample of a shard is kept, shape (num_samples,); matches are noted."""
        mask = np.ones(table.num_samples, np.bool_)
        if self.parts or self.lists:
            keys = keys_of_table(table)
            mask = self._kept_keys(keys)
            self.seen.extend(() if self.seen else keys[:1])
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
            num_keys, missing = len(listed.keys), len(listed.keys) - len(listed.matched)
            if not num_keys and not listed.numbers:
                raise ConfigError(
                    f"exclude: {listed.path} has no line with a key or an id; leave the list out "
                    "until there is something in it"
                )
            if not missing:
                continue
            unmatched = next(key for key in listed.keys if key not in listed.matched)
            shown = [repr(os.fsdecode(key)[:_SHOWN]) for key in (unmatched, *self.seen)]
            unlike = ", the first key of the samples ".join(shown)
            if not listed.matched and not listed.numbers:
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
            _log.warning(what, f"{missing:,}", f"{num_keys:,}", listed.path, unlike)

    def _kept_keys(self, keys: list[bytes]) -> NDArray[np.bool_]:
        mask = np.ones(len(keys), np.bool_)
        for name, parts in self.parts.items():
            mask &= parts.has(keys) == (name == "keep")
        for listed in self.lists:
            listed.matched.update(filter(listed.keys.__contains__, keys))
            mask &= np.fromiter((key not in listed.keys for key in keys), np.bool_, len(keys))
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
    digests, numbers = set[bytes](), defaultdict[str, list[_Ints]](list)
    for listed in lists:
        digests.update(hashlib.sha256(key).digest()[:_DIGEST_BYTES] for key in listed.keys)
        for name, of_shard in listed.numbers.items():
            numbers[name].append(of_shard)
    # Each digest is two numbers. Checkpoints hold a hash of all first ones, and then all second.
    words = np.frombuffer(b"".join(sorted(digests)), ">u8").reshape(-1, 2).T
    content = hashlib.sha256(words.astype("<u8").tobytes())
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
