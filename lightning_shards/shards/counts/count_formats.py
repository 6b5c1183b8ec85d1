"""Counts in the formats of other tools: energon, timm, img2dataset, DALI, open_clip.

None of these files says which bytes it counted. A file older than its shard is therefore passed
over, and all of them are read only if neither a wids JSON nor `sizes.json` counts the shard. A
check reads them all the same, because other tools believe them.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.beside import (
    json_object,
    read_beside,
    read_json,
    read_start,
    require_regular,
)
from lightning_shards.shards.regular_files import is_newer, open_regular
from lightning_shards.shards.tar.blocks import BLOCK, up_to_block
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import walk_members

REMOTE_NAMES: Final = ("_info.json", ".nv-meta/.info.json")
"""Files that are asked for in a remote folder."""

LENGTH: Final = "__len__"
"""The file of open_clip: one number for all shards of the folder."""

MAX_HEADER: Final = 64
"""Most bytes of a `__len__` file, and of the first line of DALI's index."""

DALI_VERSIONS: Final = ("v1.1", "v1.2")

_DALI_WORDS: Final = {"v1.1": 3, "v1.2": 4}
"""Words of a member in DALI's index: its extension, offset, size, and from v1.2 on its name."""

_DALI_END: Final = 8192  # bytes that hold the last member: a name has 4,096 at most
_MOST_DIGITS: Final = 18
_CHUNK = 1 << 20
_STATS = "_stats.json"  # img2dataset writes 00000_stats.json beside 00000.tar
_ENERGON = Path(".nv-meta", ".info.json")

_log = logging.getLogger(__name__)

Counted = tuple[str, int, str]
"""File name of a shard, its samples, and the file that says so."""


def other_counts(
    folder: Path, names: Iterable[str], *, take_all: bool = False
) -> Iterator[Counted]:
    """The counts that other tools' files give for shards of a local folder.

    The first one of each shard is enough, unless `take_all` asks for those of all files, also of
    those that are older than the shard and of indexes whose offsets are not those of the shard:
    another tool reads them all the same.

    Raises:
        FileAccessError: One of these files is a fifo, a socket, a device or a folder.
    """
    wanted = set(names)
    if not wanted:
        return
    listed = _listed(folder)
    for path, below in (
        (folder / REMOTE_NAMES[0], ""),
        (folder / _ENERGON, ""),
        (folder.absolute().parent / _ENERGON, folder.absolute().name),
    ):
        counts = counts_in(read_json(path), below)
        for name in sorted(wanted & counts.keys()):
            if take_all or is_newer(path, folder / name):
                if not take_all:
                    wanted.discard(name)
                yield name, counts[name], str(path)
    own = with_own_stems(wanted.union(name for name in listed if name.endswith(".tar")))
    for name in sorted(wanted):
        counted = _counts_of_one(
            folder, name, listed, has_own_stem=name in own, must_fit=not take_all
        )
        yield from ((name, *count) for count in (counted if take_all else islice(counted, 1)))


def _listed(folder: Path) -> set[str]:
    """The names in a folder; none, with a warning, if it cannot be listed."""
    try:
        return {path.name for path in folder.iterdir()}
    except OSError as error:
        _log.warning("no files that count shards are looked for in %s: %s", folder, error)
        return set()


def counts_in(content: object, below: str = "") -> dict[str, int]:
    """The counts in timm's `_info.json`, or in energon's `.info.json`, by file name.

    Args:
        content: Content of the file.
        below: Folder of the shards within the folder of an energon data set; otherwise empty.
    """
    fields = json_object(content)
    counted: dict[str, Any] = {}
    for name, samples in json_object(fields.get("shard_counts")).items():
        head, _, tail = name.rpartition("/")
        if head == below:
            counted[tail] = samples
    for split in json_object(fields.get("splits")).values():
        values = json_object(split)
        names, lengths = values.get("filenames"), values.get("shard_lengths")
        if isinstance(names, list) and isinstance(lengths, list) and not below:
            pairs = zip(cast("list[Any]", names), cast("list[Any]", lengths), strict=False)
            counted |= {name: samples for name, samples in pairs if isinstance(name, str)}
    return {
        name: samples for name, samples in counted.items() if type(samples) is int and samples >= 0
    }


def with_own_stems(shards: Iterable[str]) -> set[str]:
    """Those of a folder's shards to which a file named by the part before the first dot belongs.

    >>> sorted(with_own_stems(["a.tar", "a.new.tar", "b.0.tar", "c.0.tar", "c.1.tar"]))
    ['a.tar', 'b.0.tar']
    """
    stems = {name: name.partition(".")[0] for name in shards}
    counts = Counter(stems.values())
    return {name for name, stem in stems.items() if counts[stem] == 1 or name == f"{stem}.tar"}


def dali_count(path: Path, shard: Path, *, must_fit: bool = True) -> int | None:
    """The samples that DALI's index counts; None, with a warning, if it is not this shard's.

    Its last member must be the last one of the shard, unless `must_fit` is False.
    """
    words = (read_start(path, MAX_HEADER) or b"").partition(b"\n")[0].decode("latin-1").split()
    if len(words) != 2 or words[0] not in DALI_VERSIONS or not words[1].isdecimal():  # noqa: PLR2004
        return None
    if not int(words[1]) or not must_fit:
        return int(words[1])  # 0 is never believed by itself
    with os.fdopen(open_regular(path), "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _DALI_END, 0))
        _, *numbers = file.read(_DALI_END).split()[-_DALI_WORDS[words[0]] :]
    extent = [int(word) for word in numbers[:2] if word.isdigit() and len(word) <= _MOST_DIGITS]
    if len(extent) < 2 or not _is_last(shard, *extent):  # noqa: PLR2004
        _log.warning(
            "%s is passed over: its last member is not the last one of %s, which is scanned",
            path,
            shard,
        )
        return None
    return int(words[1])


def energon_count(path: Path, shard: Path, *, must_fit: bool = True) -> int | None:
    """The samples that energon's index counts; None, with a warning, if it is not this shard's.

    Its last number is the offset at which the archive ends. In an index that was cut short, or of
    another shard, that offset is at a header, within data or behind the end of the file. It is not
    looked at if `must_fit` is False.
    """
    starts = read_energon_index(path)
    if starts is None:
        return None
    if must_fit and not _is_end(shard, int(starts[-1])):
        _log.warning(
            "%s is passed over: it ends at byte %d, where %s does not end; remake it",
            path,
            starts[-1],
            shard,
        )
        return None
    return len(starts) - 1


def read_energon_index(path: Path) -> NDArray[np.int64] | None:
    """The offsets of all samples of a tar, and of its end; None if the file is no such index."""
    data = read_beside(path)
    if not data or len(data) % 8:
        return None
    starts = np.frombuffer(data, "<u8").astype(np.int64)
    is_ascending = (starts[1:] > starts[:-1]).all() and int(starts[0]) >= 0
    return starts if is_ascending and not (starts % BLOCK).any() else None


def length_in(content: bytes) -> int | None:
    """The number in a file `__len__`; None if it holds something else."""
    text = content.strip()
    return int(text) if text.isdigit() and len(content) <= MAX_HEADER else None


def _counts_of_one(
    folder: Path, name: str, listed: set[str], *, has_own_stem: bool, must_fit: bool
) -> Iterator[tuple[int, str]]:
    """The counts in files that belong to this shard alone, each with the path of the file.

    With `must_fit` they are no older than the shard, and an index has the offsets of the shard.
    """
    shard, stem = folder / name, name.partition(".")[0]
    readers: tuple[tuple[str, Callable[[Path], int | None]], ...] = (
        (f"{stem}{_STATS}", lambda path: _successes(read_json(path))),
        (f"{name}.idx", lambda path: energon_count(path, shard, must_fit=must_fit)),
        (f"{stem}.idx", lambda path: dali_count(path, shard, must_fit=must_fit)),
        (LENGTH, _length),
    )
    for file_name, read in readers:
        is_by_stem = not file_name.startswith((name, LENGTH))
        if file_name not in listed or (is_by_stem and not has_own_stem):
            continue
        require_regular(folder / file_name)
        if must_fit and not is_newer(folder / file_name, shard):
            continue
        if file_name == LENGTH and sum(other.endswith(".tar") for other in listed) != 1:
            continue  # it counts all shards of the folder together
        samples = read(folder / file_name)
        if samples is not None:
            yield samples, str(folder / file_name)


def _is_last(shard: Path, offset: int, size: int) -> bool:
    """Whether the data of a shard's last member is here."""
    stop = up_to_block(offset + size)
    try:
        with open_tar(shard) as data:
            if offset < BLOCK or stop > len(data):
                return False
            member = next(walk_members(data, str(shard), offset - BLOCK), None)
            following = next(walk_members(data, str(shard), stop), None)
    except DamagedShardError:
        return False
    is_there = member is not None and (member.offset, member.size) == (offset, size)
    return is_there and following is None


def _is_end(shard: Path, position: int) -> bool:
    """Whether a shard holds only zeros from here on, and at least the end marker."""
    with os.fdopen(open_regular(shard), "rb") as file:
        if not 0 <= position <= os.fstat(file.fileno()).st_size - BLOCK:
            return False
        file.seek(position)
        return all(chunk.count(0) == len(chunk) for chunk in iter(lambda: file.read(_CHUNK), b""))


def _successes(content: object) -> int | None:
    """The samples of a tar of img2dataset; its `count` includes failed downloads."""
    successes = json_object(content).get("successes")
    return successes if type(successes) is int and successes >= 0 else None


def _length(path: Path) -> int | None:
    """The number in a local file `__len__`."""
    return length_in(read_start(path, MAX_HEADER + 1) or b"")
