"""What a filter left of a data set, kept in the cache for later runs and for other processes.

The numbers of `KeptSamples`, which grow with the data set, are a .npy file that each process maps
when it first uses them. A JSON file beside it, which is written last, has the counts of what is
left and the checksum of the numbers. The names of both have all that their content depends on, the
stamps of the shards too, so that a file is never another one while a run reads it.
"""

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import FileAccessError
from lightning_shards.plan.kept_order import KeptSamples, Numbers
from lightning_shards.shards.beside import json_object
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.files import new_file, stamp_of
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder, sidecar_name
from lightning_shards.shards.urls import is_local

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]

_VERSION = 3
_FILE_MODE = 0o600
_ABSENT = (-1, -1)


@dataclass(frozen=True)
class MappedNumbers(Numbers):
    """Numbers in a file of the cache, which each process maps when it first needs them."""

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place, not the map."""
        return MappedNumbers, (self.path,)

    def values(self) -> NDArray[Any]:
        """The numbers.

        Raises:
            FileAccessError: The file is no longer there.
        """
        return self._mapped

    @cached_property
    def _mapped(self) -> NDArray[Any]:
        try:
            return np.asarray(np.load(self.path, mmap_mode="r"))
        except FileNotFoundError:
            raise FileAccessError(
                f"{self.path}, which says which samples are drawn, was removed during the run; "
                "start it anew, and leave the cache_dir alone while it runs"
            ) from None


def kept_path(index: ShardIndex, digest: str, stamps: _Ints, cache: CacheFolder) -> Path:
    """Where the cache has what the filter with this digest left of shards with these stamps."""
    assert index.counts is not None  # the caller has seen to it
    text = "\n".join([digest, *map(sidecar_name, index.urls)])
    hashed = hashlib.sha256(text.encode("utf-8", "surrogateescape"))
    hashed.update(index.counts.tobytes() + stamps.tobytes())
    return cache.root / "kept" / f"{hashed.hexdigest()[:32]}.json"


def stamps_of(index: ShardIndex, cache: CacheFolder) -> _Ints:
    """What shows that a shard or the table of a remote one is another: int64, (num_shards, 2)."""
    stamps: list[tuple[int, int]] = []
    for url in index.urls:
        path = url if is_local(url) else cache.sidecar_of(url)
        try:
            stamps.append(stamp_of(path))
        except OSError:
            stamps.append(_ABSENT)  # a local shard that is missing is an error elsewhere
    return np.array(stamps, np.int64).reshape(-1, 2)


def write_kept(path: Path, kept: KeptSamples, cache: CacheFolder) -> KeptSamples:
    """Write what is left, and take the numbers from the file from now on; held if it fails."""
    numbers, of_numbers = kept.numbers.values(), path.with_suffix(".npy")
    head = {
        "version": _VERSION,
        "identity": kept.identity,
        "are_kept": kept.are_kept,
        "crc32": _checksum(numbers, kept.counts),
        "counts": kept.counts.tolist(),
    }
    try:
        cache.make_folder(path.parent)
        with new_file(of_numbers, mode=_FILE_MODE) as file:
            np.save(file, numbers)
        cache.write(path, json.dumps(head).encode())
    except OSError as error:
        _log.warning(
            "which samples are left stays in memory, and is found out again by each rank and the "
            "next run: %s; name another cache_dir",
            error,
        )
        return kept
    mapped = MappedNumbers(of_numbers)
    return KeptSamples(kept.totals, kept.counts, mapped, kept.are_kept, kept.identity)


def read_kept(
    path: Path, index: ShardIndex, cache: CacheFolder, *, is_checked: bool
) -> KeptSamples | None:
    """What the file says is left of these shards; None if there is none, or it is damaged.

    `is_checked` says that the checksum of the numbers was compared before.

    Raises:
        FileAccessError: The cache folder could be another user's work.
    """
    opened = cache.open(path)
    if opened is None or index.counts is None:
        return None
    mapped = MappedNumbers(path.with_suffix(".npy"))
    try:
        with os.fdopen(opened, "rb") as file:
            head = json_object(json.load(file))
        numbers, counts = mapped.values(), np.array(head["counts"], np.int64)
        is_whole = head["version"] == _VERSION and len(counts) == index.num_shards
        is_whole &= is_checked or _checksum(numbers, counts) == head["crc32"]
        identity, are_kept = str(head["identity"]), bool(head["are_kept"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError) as error:
        _log.warning("which samples are left is found out again: %s: %s", path, error)
        return None
    if not is_whole:
        _log.warning("which samples are left is found out again: %s is damaged", path)
        return None
    return KeptSamples(index.counts, counts, mapped, are_kept, identity)


def _checksum(numbers: NDArray[Any], counts: _Ints) -> int:
    return crc32(np.ascontiguousarray(counts), crc32(np.ascontiguousarray(numbers)))
