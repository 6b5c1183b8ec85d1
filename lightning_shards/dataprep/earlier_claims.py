"""What files beside shards claim about them, for `verify` and `index` until these are replaced."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from lightning_shards.errors import StorageError
from lightning_shards.shards import beside
from lightning_shards.shards.beside import (
    MARKER,
    SIZES,
    entry_parts,
    json_files,
    json_object,
    read_json,
    read_start,
    shard_entries,
)
from lightning_shards.shards.counts import bytes_beside
from lightning_shards.shards.files import is_newer
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import redact, split_url, unescaped, url_beside

FACTS: Final = ("nsamples", "filesize", "md5sum")

_Parts = tuple[str, ...]
_GZIP: Final = b"\x1f\x8b"
REMOTE_NAMES: Final = ("_info.json",)
LENGTH: Final = "__len__"
MAX_HEADER: Final = 64
DALI_VERSIONS: Final = ("v1.1", "v1.2")
_STATS = "_stats.json"

_log = logging.getLogger(__name__)

Counted = tuple[str, int, str]
"""File name of a shard, its samples, and the file that says so."""


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """What one file says of one shard.

    Attributes:
        source: Path or URL of the file.
        facts: Those of `FACTS` that it states, as they stand there, which may be of any type.
    """

    source: str
    facts: Mapping[str, object]


def claims_in(
    content: object, source: str, folder: _Parts, names: frozenset[str]
) -> Iterator[tuple[str, ShardClaim]]:
    """The claims of one JSON file about these shards, by file name.

    Args:
        content: Content of the file.
        source: Its path or URL.
        folder: The parts of the path or URL of the folder that the shards are in.
        names: File names of the shards.
    """
    fields = json_object(content)
    if fields.get("wids_version") == 1:
        yield from _wids_claims(fields, source, folder, names)
        return
    is_sizes = source.rpartition("/")[2] == SIZES
    counts = fields if is_sizes else counts_in(fields) if source.endswith(REMOTE_NAMES) else {}
    for name in names & counts.keys():
        yield name, ShardClaim(source, _stated({"nsamples": counts[name]}))


def entries_listed(content: object, folder: _Parts) -> dict[str, dict[str, Any]]:
    """The entries of the shards that a wids index certainly lists in this folder, by file name.

    An index that was moved with its shards lists them in a folder of another name, and all of them
    in one.
    """
    fields = json_object(content)
    listed = list(_listed(fields)) if fields.get("wids_version") == 1 else []
    here = {parts[-1]: entry for entry, parts in listed if _is_in(folder, parts)}
    if here or len({parts[:-1] for _, parts in listed}) != 1:
        return here
    return {parts[-1]: entry for entry, parts in listed}


def _wids_claims(
    fields: dict[str, object], source: str, folder: _Parts, names: frozenset[str]
) -> Iterator[tuple[str, ShardClaim]]:
    """The claims of a wids index about these shards.

    An entry whose path ends in this folder is certain to be meant. An entry with another folder
    (the shards were moved) counts if all with its file name say the same; of different MD5s none is
    believed.
    """
    certain: set[str] = set()
    moved: dict[str, list[Mapping[str, object]]] = {}
    for entry, parts in _listed(fields):
        name = parts[-1]
        facts = _stated(entry) if name in names else {}
        if not facts:
            continue
        if _is_in(folder, parts):
            certain.add(name)
            yield name, ShardClaim(source, facts)
        else:
            moved.setdefault(name, []).append(facts)
    for name, facts in moved.items():
        if name not in certain:
            alike = facts if _are_equal(facts) else list(map(_without_md5, facts))
            yield from [(name, ShardClaim(source, alike[0]))] if _are_equal(alike) else ()


def _listed(fields: dict[str, object]) -> Iterator[tuple[dict[str, Any], _Parts]]:
    """The entries of a wids index, each with its relative path, if that leads below a folder."""
    for entry in shard_entries(fields) or ():
        url = entry.get("url")
        parts = entry_parts(fields.get("base"), url) if isinstance(url, str) else ()
        if parts:
            yield entry, parts


def _is_in(folder: _Parts, parts: _Parts) -> bool:
    """Whether the relative path of an entry ends in a file of this folder."""
    above = parts[:-1]
    return not above or folder[-len(above) :] == above


def _stated(entry: Mapping[str, object]) -> dict[str, object]:
    return {name: entry[name] for name in FACTS if entry.get(name) is not None}


def _without_md5(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if name != "md5sum"}


def _are_equal(values: Sequence[Mapping[str, object]]) -> bool:
    return all(value == values[0] for value in values)


def json_contents(folder: Path) -> Iterator[tuple[str, object]]:
    """Path and content of the wids JSONs and of `sizes.json` in a local folder."""
    for path in json_files(folder):
        yield str(path), read_json(path, containing=b"" if path.name == SIZES else MARKER)


def folder_parts(folder: str) -> tuple[str, ...]:
    """The parts of the path of a local folder, of which entries of an index may name the last."""
    return Path(folder).absolute().parts


def other_claims(
    folder: Path, names: Iterable[str], *, take_all: bool
) -> Iterator[tuple[str, ShardClaim]]:
    """The claims of other tools' files in a local folder; without `take_all` one for each shard."""
    for name, samples, source in other_counts(folder, names, take_all=take_all):
        yield name, ShardClaim(source, {"nsamples": samples})


def claims_of_file(
    file_name: str, shard: str, asked: frozenset[str], storages: Storages, unread: list[str]
) -> list[tuple[str, ShardClaim]] | None:
    """The claims of one file beside a remote shard, further arguments as of `remote_claims`.

    None if the server does not answer, so that nobody waits for another file: once is enough.
    `unread` gets the reason why the file cannot be read, unless it is absent.
    """
    named = {unescaped(name, shard): name for name in asked}
    wanted = asked | named.keys()  # files have names as they are, or as URLs escape them
    parts = tuple(split_url(shard)[0].split("/"))
    url = url_beside(shard, file_name)
    try:
        content = _read_json(url, storages, unread)
    except OSError as error:
        unread.append(str(error))
        return [] if isinstance(error, StorageError) and error.is_final else None
    found = claims_in(content, redact(url), parts, wanted)
    return [(name if name in asked else named[name], claim) for name, claim in found]


def _read_json(url: str, storages: Storages, unread: list[str]) -> object:
    """The content of a remote JSON file; None if it is absent, too large or not JSON."""
    data = bytes_beside(url, beside.MAX_INDEX_BYTES, storages)
    if data is None:
        return None
    if len(data) > beside.MAX_INDEX_BYTES:
        _log.warning(
            "%s is passed over: it has more than the %s bytes that such a file may have; remake it",
            redact(url),
            f"{beside.MAX_INDEX_BYTES:,}",
        )
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        kind = "compressed JSON" if data.startswith(_GZIP) else "no JSON"
        unread.append(f"{redact(url)} is {kind}: {error}")
    return None


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
    listed = _names_in(folder)
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


def _names_in(folder: Path) -> set[str]:
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
