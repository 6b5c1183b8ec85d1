"""The assignment of samples to shards: pure arithmetic on a catalog.

All randomness comes from each sample's key and the seed alone (`Catalog.words`). So neither the
order in which inputs are named nor samples that are added later change the split of a sample, or
the order of the other samples.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import PurePath
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.writing.catalog import Catalog
from lightning_shards.dataprep.writing.keys import check_key, prefixed_key
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.shards.tar.blocks import BLOCK, up_to_block

PackOrder = Literal["source", "shuffled", "sorted"]
"""As listed, in a uniformly random order by the seed, or sorted by the bytes of the keys."""

DuplicateKeys = Literal["refuse", "prefix", "number"]
"""Keys of several samples are an error, get the name of their file before, or a number behind."""

FRACTION_SPLITS: Final = ("train", "val")
"""The splits that `val_fraction` makes."""

DEFAULT_MAX_BYTES: Final = 1_000_000_000
"""Bytes of a shard: large enough for few files that disks and stores read at full speed."""

_ORDER_WORD, _SPLIT_WORD, _KEEP_WORD = range(3)
_WORD_RANGE = 2.0**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How samples are laid out in shards.

    Attributes:
        order: The order of the samples.
        seed: 0 <= seed < 2**64.
        max_samples: Most samples of a shard.
        max_bytes: Most bytes of a shard, before any edit; a larger sample gets a shard of its own.
            Default: 1 GB if `max_samples` is not given.
        num_shards: Number of shards of all splits together, in proportion to their samples; it
            replaces the two limits. The shards of a split differ by at most one sample.
        keep: Share of the samples that is kept, each by its own draw.
        val_fraction: Share of the samples that goes to the split `val`; the others go to `train`.
    """

    order: PackOrder = "source"
    seed: int = 0
    max_samples: int | None = None
    max_bytes: int | None = None
    num_shards: int | None = None
    keep: float = 1.0
    val_fraction: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        if self.order not in get_args(PackOrder):
            raise ConfigError(f"order must be one of {get_args(PackOrder)}, got {self.order!r}")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed must be at least 0 and below 2**64, got {self.seed}")
        for name in ("max_samples", "max_bytes", "num_shards"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**63:
                raise ConfigError(f"{name} must be at least 1 and below 2**63, got {value}")
        if self.num_shards is not None and (self.max_samples or self.max_bytes):
            raise ConfigError("num_shards goes with neither max_samples nor max_bytes; choose")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must be a share above 0 and at most 1, got {self.keep}")
        if not 0 <= self.val_fraction < 1:
            raise ConfigError(f"val_fraction must be from 0 to below 1, got {self.val_fraction}")


def assign(
    catalog: Catalog, packing: Packing, is_kept: NDArray[np.bool_] | None = None
) -> dict[str, list[NDArray[np.int64]]]:
    """The numbers of the samples of each shard, in order, by split ("" if there are no splits).

    Args:
        catalog: The samples. If it names splits, these are used, and `val_fraction` must be 0.
        packing: How samples are laid out.
        is_kept: bool, shape (num_samples,): the samples that pass a filter; None: all.

    Raises:
        ConfigError: A split has no sample, or fewer samples than shards.
        SampleError: A sample is in no split while others are.
    """
    words = catalog.words(packing.seed)
    numbers = _in_order(catalog, packing, words)
    if is_kept is not None:
        numbers = numbers[is_kept[numbers]]
    if packing.keep < 1:
        numbers = numbers[words[numbers, _KEEP_WORD] < np.uint64(packing.keep * _WORD_RANGE)]
    splits = _split(catalog, packing, words, numbers)
    sizes = _tar_sizes(catalog)
    return {
        name: _cut(part, sizes, packing, name, len(part) / max(len(numbers), 1))
        for name, part in splits.items()
    }


def split_names(catalog: Catalog, packing: Packing) -> list[str]:
    """The splits that `assign` gives; [""] if there are no splits."""
    if catalog.splits and packing.val_fraction:
        raise ConfigError("val_fraction and a column of splits both split; choose one")
    if catalog.splits:
        return sorted(catalog.splits)
    return list(FRACTION_SPLITS) if packing.val_fraction else [""]


def with_unique_keys(catalog: Catalog, duplicate_keys: DuplicateKeys = "refuse") -> Catalog:
    """The same samples, where those that share a key with others may get other keys.

    Raises:
        SampleError: Two samples have the same key, or one that is made is too long.
    """
    repeated = _repeated_keys(catalog).tolist()
    if repeated and duplicate_keys != "refuse":
        rename = _with_prefixes if duplicate_keys == "prefix" else _with_numbers
        catalog = _with_keys(catalog, rename(catalog, repeated))
        repeated = _repeated_keys(catalog).tolist()
    if repeated:
        raise _error_of(catalog, repeated, duplicate_keys)
    return catalog


def _with_prefixes(catalog: Catalog, numbers: Sequence[int]) -> dict[int, str]:
    """Keys with the name of the sample's file before them, by the number of the sample."""
    return {
        number: prefixed_key(_stem(catalog.source_of(number)), catalog.key(number))
        for number in numbers
    }


def _with_numbers(catalog: Catalog, numbers: Sequence[int]) -> dict[int, str]:
    """Keys with a number behind them, from 1 on for each key, by the number of the sample."""
    renamed: dict[int, str] = {}
    counts: Counter[str] = Counter()
    for number in numbers:
        key = catalog.key(number)
        counts[key] += 1
        renamed[number] = f"{key}-{counts[key]}"
        check_key(renamed[number])
    return renamed


def _error_of(catalog: Catalog, repeated: Sequence[int], tried: DuplicateKeys) -> SampleError:
    """The error for samples that still share their keys, with what was not tried as its remedy."""
    key = catalog.key(repeated[0])
    alike = (number for number in repeated if catalog.key(number) == key)
    first, second = (catalog.source_of(number) for number in islice(alike, 2))
    remedy = "make them unique (of a table, --key names a column of keys)"
    if tried != "number":
        remedy = f"put numbers behind these keys (--duplicate-keys number), or {remedy}"
    if tried == "refuse" and _stem(first) != _stem(second):
        remedy = f"put the names of their files before them (--duplicate-keys prefix), {remedy}"
    return SampleError(
        f"{len(repeated)} samples share their keys with others, such as {key!r} of "
        f"{first or 'a row'} and {second or 'a row'}; {remedy}"
    )


def _stem(path: str) -> str:
    return PurePath(path).name.partition(".")[0] or "row"


def _with_keys(catalog: Catalog, renamed: Mapping[int, str]) -> Catalog:
    """The catalog with new keys for some samples, by their number."""
    bounds = catalog.key_starts
    lengths = np.diff(bounds)
    keys = bytearray()
    end = 0
    for number in sorted(renamed):
        key = renamed[number].encode()
        keys += catalog.keys[end : bounds[number]] + key
        end, lengths[number] = int(bounds[number + 1]), len(key)
    keys += catalog.keys[end:]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return replace(catalog, keys=bytes(keys), key_starts=starts)


def _repeated_keys(catalog: Catalog) -> NDArray[np.int64]:
    """The numbers of all samples whose key another sample has as well, in order."""
    # word: a hash of each key, shape (num_samples,). Equal keys are neighbours in `order`, and
    # only samples with the hash of a neighbour (`suspects`) are compared by their keys.
    word = catalog.words(0)[:, _ORDER_WORD]
    order = np.argsort(word, kind="stable")
    is_equal = word[order[1:]] == word[order[:-1]]
    is_suspect = np.zeros(len(order), np.bool_)
    is_suspect[1:] |= is_equal
    is_suspect[:-1] |= is_equal
    suspects = order[is_suspect]
    keys = [catalog.key(number) for number in suspects.tolist()]
    seen: dict[str, int] = {}
    for key in keys:
        seen[key] = seen.get(key, 0) + 1
    repeated = [
        number for number, key in zip(suspects.tolist(), keys, strict=True) if seen[key] > 1
    ]
    return np.array(sorted(repeated), np.int64)


def _in_order(catalog: Catalog, packing: Packing, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The numbers of all samples in the order of `packing.order`."""
    if packing.order == "source":
        return np.arange(len(catalog))
    bounds = catalog.key_starts.tolist()

    def key(number: int) -> bytes:
        return catalog.keys[bounds[number] : bounds[number + 1]]

    if packing.order == "sorted":
        return np.array(sorted(range(len(catalog)), key=key), np.int64)
    # Sorted by one word; equal words, of which there are 2**64, by another.
    return np.lexsort((words[:, _SPLIT_WORD], words[:, _ORDER_WORD]))


def _split(
    catalog: Catalog, packing: Packing, words: NDArray[np.uint64], numbers: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    names = split_names(catalog, packing)
    if names == [""]:
        return {"": numbers}
    if packing.val_fraction:
        limit = np.uint64(packing.val_fraction * _WORD_RANGE)
        is_val = words[numbers, _SPLIT_WORD] < limit
        return {"train": numbers[~is_val], "val": numbers[is_val]}
    ids = catalog.split_ids[numbers]
    if (ids < 0).any():
        key = catalog.key(int(numbers[ids < 0][0]))
        raise SampleError(f"sample {key!r} is in no split, while others are")
    return {name: numbers[ids == catalog.splits.index(name)] for name in names}


def _tar_sizes(catalog: Catalog) -> NDArray[np.int64]:
    """Bytes of each sample in a tar, without the extended headers of unusual names."""
    sizes = BLOCK + up_to_block(catalog.sizes)
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return sums[catalog.sample_starts[1:]] - sums[catalog.sample_starts[:-1]]


def _cut(
    numbers: NDArray[np.int64],
    sizes: NDArray[np.int64],
    packing: Packing,
    split: str,
    share: float,
) -> list[NDArray[np.int64]]:
    """The samples of each shard of one split, which has this share of all samples."""
    name = f"split {split!r}" if split else "the data set"
    if not len(numbers):
        raise ConfigError(f"{name} has no sample; look at the input and at what was left out of it")
    if packing.num_shards is not None:
        num_shards = max(1, round(packing.num_shards * share))
        if num_shards > len(numbers):
            raise ConfigError(f"{name} has {len(numbers)} samples, too few for {num_shards} shards")
        return np.array_split(numbers, num_shards)
    max_samples = packing.max_samples or len(numbers)
    max_bytes = packing.max_bytes or (DEFAULT_MAX_BYTES if packing.max_samples is None else 0)
    ends = np.cumsum(sizes[numbers])
    cuts = [0]
    while cuts[-1] < len(numbers):
        start = cuts[-1]
        stop = min(start + max_samples, len(numbers))
        if max_bytes:
            limit = max_bytes + (int(ends[start - 1]) if start else 0)
            stop = min(stop, int(np.searchsorted(ends, limit, side="right")))
        cuts.append(max(stop, start + 1))
    return [numbers[start:stop] for start, stop in pairwise(cuts)]
