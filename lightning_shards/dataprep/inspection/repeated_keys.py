"""Keys that several samples have, in one shard or in several, found by 64-bit hashes."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.inspection.findings import Finding, Rule
from lightning_shards.errors import count_of
from lightning_shards.shards.members import MemberTable


def key_hashes(table: MemberTable) -> NDArray[np.uint64]:
    """A 64-bit hash of each key, the same in every process; uint64, shape (num_samples,).

    Each (position, byte) pair has a random word of its own, and the hash of a key is the sum of its
    words, so that two different keys have equal hashes with a chance of 2**-64.
    """
    # positions, words: one entry per byte of `table.keys`: its position in its key, and its word.
    # sums: sums of all words up to each byte, so that a key's sum is a difference of two of them.
    lengths = np.diff(table.key_starts)
    positions = np.arange(len(table.keys)) - np.repeat(table.key_starts[:-1], lengths)
    words = _WORDS[positions % len(_WORDS), table.keys] * _LAPS[positions // len(_WORDS)]
    sums = np.concatenate(([np.uint64(0)], np.cumsum(words, dtype=np.uint64)))
    return sums[table.key_starts[1:]] - sums[table.key_starts[:-1]]


_WORDS = np.frombuffer(np.random.Philox(1).random_raw(128 * 256).tobytes(), np.uint64).reshape(
    128, 256
)
_LAPS = np.frombuffer(np.random.Philox(2).random_raw(1 << 8).tobytes(), np.uint64) | np.uint64(1)
"""Odd factors that distinguish a byte from one 128 bytes later. Names have at most 4,096 bytes."""


def find_repeats(table: MemberTable, shard: str, hashes: NDArray[np.uint64]) -> list[Finding]:
    """Findings about keys that a shard has more than once: split samples, and duplicates."""
    # order: the numbers of all samples by hash; twins: where neighbours in it have equal hashes.
    order = np.argsort(hashes, kind="stable")
    twins = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    twins_by_rule: dict[Rule, list[int]] = {"split sample": [], "duplicate key": []}
    before, last, has_second = set[str](), -1, False
    for first, second in zip(order[twins].tolist(), order[twins + 1].tolist(), strict=True):
        if first != last:  # it begins another key
            before, has_second = set(table.suffixes_of(first)), False
        fields, last = set(table.suffixes_of(second)), second
        # What follows a second sample of its key may belong to either.
        has_second = has_second or not before.isdisjoint(fields)
        twins_by_rule["duplicate key" if has_second else "split sample"].append(second)
        before |= fields
    return [
        _repeat(rule, table, shard, min(samples), len(samples))
        for rule, samples in twins_by_rule.items()
        if samples
    ]


_REPEATS: dict[Rule, str] = {
    "split sample": "members of {count:,} samples are not adjacent, first of {key!r}: readers "
    "make several samples of them; write the shard again with the members of a sample side by side",
    "duplicate key": "{count:,} samples have the key and a field of another one, first {key!r}; "
    "remove one of them, or give it another key",
}


def _repeat(rule: Rule, table: MemberTable, shard: str, sample: int, count: int) -> Finding:
    key = table.key(sample)
    byte = int(table.offsets[table.sample_starts[sample]])
    return Finding(rule, _REPEATS[rule].format(count=count, key=key), shard, key, byte, count)


def find_repeats_between(
    hashes: Sequence[NDArray[np.uint64]],
    shards: Sequence[str],
    key_of: Callable[[int, int], str | None],
) -> list[Finding]:
    """A finding about keys that are in several shards.

    Args:
        hashes: `key_hashes` of each shard.
        shards: Paths of the shards.
        key_of: Gives the key of a sample, by the number of its shard and its number in it; None if
            it cannot be read again.
    """
    # numbers: the shard of each key of `every`; order: positions in `every` by hash.
    # pairs: positions of keys with equal hashes; between: those pairs whose shards differ. A key
    # that k shards have is in k - 1 of them.
    numbers = np.repeat(np.arange(len(hashes)), [len(of_shard) for of_shard in hashes])
    every = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    order = np.argsort(every, kind="stable")
    twins = np.flatnonzero(every[order][1:] == every[order][:-1])
    pairs = order[twins], order[twins + 1]
    between = np.flatnonzero(numbers[pairs[0]] != numbers[pairs[1]])
    if not len(between):
        return []
    later = pairs[1][between]
    first = int(np.argmin(later))
    earlier, other = int(numbers[pairs[0][between[first]]]), int(numbers[later[first]])
    start = sum(len(of_shard) for of_shard in hashes[:other])
    key = key_of(other, int(later[first]) - start)
    named = "one" if key is None else repr(key)
    num_keys = len(np.unique(every[later]))
    are = "is" if num_keys == 1 else "are"
    message = (
        f"{count_of(num_keys, 'key')} {are} in several shards, first {named} of {shards[earlier]}; "
        "readers of tars do not mind, energon does: give the keys of each shard a prefix for it"
    )
    return [Finding("repeated key", message, shards[other], key, count=num_keys)]
