"""Files that runs make in the cache: joins, what filters leave, and balanced classes.

They stay there until they are cleared, as another run may need them.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import FileAccessError
from lightning_shards.plan.kept_order import Numbers
from lightning_shards.shards.files import (
    CacheFolder,
    new_file,
    not_written,
    remove_parts,
    sidecar_name,
    stamp_of,
)
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local

_Made = TypeVar("_Made")

_log = logging.getLogger(__name__)

_FETCHED_TOGETHER: Final = 256  # tables


def digest_with_shards(
    digest: str, index: ShardIndex, cache: CacheFolder, tables: TableStore
) -> str:
    """A hash of this one, the shards, and what shows that one, or its table, is another now.

    The tables of remote shards are fetched before.

    Raises:
        ShardError: As of `TableStore.fetch`.
    """
    for first in range(0, index.num_shards, _FETCHED_TOGETHER):
        tables.fetch(index.urls[first : first + _FETCHED_TOGETHER])
    hashed = hashlib.sha256(digest.encode())
    assert index.counts is not None  # who asks has seen to it
    for url, count in zip(index.urls, index.counts.tolist(), strict=True):
        try:
            stamp = stamp_of(url if is_local(url) else cache.sidecar_of(url))
        except OSError:
            stamp = None  # a local shard that is missing is an error elsewhere
        hashed.update(os.fsencode(f"\n{sidecar_name(url)} {count} {stamp}"))
    return hashed.hexdigest()[:32]


def made_once(
    path: Path,
    cache: CacheFolder,
    read: Callable[[Path], _Made],
    write: Callable[[BinaryIO], object],
) -> _Made:
    """What is in a file of the cache, which one process or thread of a node makes.

    Args:
        path: The file. Its name has all that its content depends on.
        cache: The folder that it is below.
        read: Gives what is in the file, or raises an error if it is damaged: it is made again then.
        write: Writes its content.

    Raises:
        FileAccessError: The cache folder is another user's, or the file cannot be written.
    """
    try:
        cache.make_folder(path.parent)
        # what is there is read without a lock, of a folder that is read-only, too
        with nullcontext() if path.exists() else _alone(path.with_suffix(".lock")):
            if path.exists():
                try:
                    return read(path)
                except (OSError, EOFError, LookupError, TypeError, ValueError) as error:
                    _log.warning("%s is made again: %s", path, error)
            with new_file(path, mode=0o600) as file:
                write(file)
            return read(path)
    except OSError as error:
        raise not_written(path, error) from error


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


FOLDERS: Final = {"joins": "joins", "kept": "filters", "balance": "balanced classes"}
"""The folders of the cache that hold such files, and what they are of."""


def list_made(cache: CacheFolder) -> dict[Path, tuple[str, int]]:
    """The files that runs have made: what each is of, and its bytes."""
    paths = ((path, of) for name, of in FOLDERS.items() for path in (cache.root / name).glob("*"))
    listed: dict[Path, tuple[str, int]] = {}
    for path, of in sorted(paths):
        if path.suffix not in (".lock", ".part"):  # these may be in use
            with suppress(FileNotFoundError):  # it was removed meanwhile
                listed[path] = of, path.stat().st_size
    return listed


def clear_made(cache: CacheFolder) -> tuple[int, int]:
    """Remove all of it but what is being written.

    A process that has such a file mapped goes on reading it, and one that needs a join makes it
    again.

    Returns:
        How many files were removed, and their bytes.
    """
    made = list_made(cache)
    for name in FOLDERS:
        remove_parts(cache.root / name)
    for path in made:
        path.unlink(missing_ok=True)
    return len(made), sum(size for _, size in made.values())


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """A context that one thread or process is in at a time, where the file system has locks."""
    with path.open("ab") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):  # a process that was forked meanwhile has the file open, too
                fcntl.flock(file, fcntl.LOCK_UN)
