"""Counts in the formats of other tools: timm, img2dataset, open_clip.

None of these files says which bytes it counted. A file older than its shard is therefore passed
over, and all of them are read only if neither a wids JSON nor `sizes.json` counts the shard. A
check reads them all the same, because other tools believe them.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

from lightning_shards.shards.beside import json_object, read_json, read_start
from lightning_shards.shards.regular_files import is_newer

REMOTE_NAMES: Final = ("_info.json",)
"""Files that are asked for in a remote folder."""

LENGTH: Final = "__len__"
"""The file of open_clip: one number for all shards of the folder."""

MAX_HEADER: Final = 64
"""Most bytes of a `__len__` file."""

DALI_VERSIONS: Final = ("v1.1", "v1.2")

_STATS = "_stats.json"  # img2dataset writes 00000_stats.json beside 00000.tar

_log = logging.getLogger(__name__)

Counted = tuple[str, int, str]
"""File name of a shard, its samples, and the file that says so."""


def other_counts(
    folder: Path, names: Iterable[str], *, take_all: bool = False
) -> Iterator[Counted]:
    """The counts that other tools' files give for shards of a local folder.

    The first one of each shard is enough, unless `take_all` asks for those of all files, also of
    those that are older than the shard: another tool reads them all the same.

    Raises:
        FileAccessError: One of these files is a fifo, a socket, a device or a folder.
    """
    wanted = set(names)
    if not wanted:
        return
    listed = _listed(folder)
    shards = {name for name in listed if name.endswith(".tar")}
    info, own = counts_in(read_json(folder / REMOTE_NAMES[0])), with_own_stems(wanted | shards)
    length = _length(folder / LENGTH)
    for name in sorted(wanted):
        stats = f"{name.partition('.')[0]}{_STATS}"
        found = [(REMOTE_NAMES[0], info.get(name))]
        if stats in listed and name in own:
            found.append((stats, _successes(read_json(folder / stats))))
        if len(shards) == 1:  # otherwise it counts all shards of the folder together
            found.append((LENGTH, length))
        counted = [
            (name, samples, str(folder / file_name))
            for file_name, samples in found
            if samples is not None and (take_all or is_newer(folder / file_name, folder / name))
        ]
        yield from counted if take_all else counted[:1]


def _listed(folder: Path) -> set[str]:
    """The names in a folder; none, with a warning, if it cannot be listed."""
    try:
        return {path.name for path in folder.iterdir()}
    except OSError as error:
        _log.warning("no files that count shards are looked for in %s: %s", folder, error)
        return set()


def counts_in(content: object) -> dict[str, int]:
    """The counts in timm's `_info.json`, by file name."""
    counted: dict[Any, Any] = {}
    for split in json_object(json_object(content).get("splits")).values():
        values = json_object(split)
        names, lengths = values.get("filenames"), values.get("shard_lengths")
        if isinstance(names, list) and isinstance(lengths, list):
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


def length_in(content: bytes) -> int | None:
    """The number in a file `__len__`; None if it holds something else."""
    text = content.strip()
    return int(text) if text.isdigit() and len(content) <= MAX_HEADER else None


def _successes(content: object) -> int | None:
    """The samples of a tar of img2dataset; its `count` includes failed downloads."""
    successes = json_object(content).get("successes")
    return successes if type(successes) is int and successes >= 0 else None


def _length(path: Path) -> int | None:
    """The number in a local file `__len__`."""
    return length_in(read_start(path, MAX_HEADER + 1) or b"")
