"""What index files that are there already say of shards, read before any of them is written anew.

A file that describes a folder (the wids JSON, `sizes.json`, energon's `.info.json`, the card) may
list more shards than are indexed now, and may be another program's or edited by hand. What would be
lost is kept, where the format has room for it, or refused. A link is replaced as a link, so that
nothing is lost of what it leads to, unless that lists other shards.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from lightning_shards.dataprep.earlier_claims import (
    entries_listed,
    entry_parts,
    folder_parts,
)
from lightning_shards.dataprep.indexes.cards import CARD, ListedSplit, listed_in_card
from lightning_shards.dataprep.indexes.energon import FOLDER, INFO, INFO_FIELDS
from lightning_shards.dataprep.indexes.wanted_files import IndexFiles
from lightning_shards.dataprep.inspection.listed_shards import ListedMd5
from lightning_shards.errors import ConfigError
from lightning_shards.shards.beside import (
    MAX_INDEX_BYTES,
    SIZES,
    foreign_field,
    is_count,
    is_number,
    json_object,
    read_json,
    shard_entries,
)
from lightning_shards.shards.files import read_regular, stamp_of
from lightning_shards.shards.urls import is_local

_TOGETHER: Final = "it describes the whole folder: index all of its shards together, or leave out "


def require_own_index(urls: Sequence[str], files: IndexFiles) -> None:
    """Check, before shards are read, that no index file would lose what it says of others.

    Raises:
        ConfigError: One would, or it is no file that this package wrote; the message names it.
        FileAccessError: One is no regular file.
    """
    paths = files.paths(urls) if files.output is not None else list(map(Path, urls))
    folders: dict[Path, set[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, set()).add(path.name)
    for folder, names in folders.items():
        wids_before(folder, names, files)
        sizes_before(folder, files)
    root, below = below_root(paths)
    named = frozenset(below)
    if "energon" in files.formats:
        counted = energon_before(root, files)
        others = [name for name in counted if _is_other(root, name, named, files)]
        _refuse(root / FOLDER / INFO, "counts", others, files, f"{_TOGETHER}the format energon")
    if "card" in files.formats:
        listed = [_others(root, split, named, files) for split in _card_before(root, files)]
        others = sorted(set(chain.from_iterable(listed)))
        _refuse(root / CARD, "lists", others, files, f"{_TOGETHER}the format card")


def below_root(shards: Sequence[Path]) -> tuple[Path, list[str]]:
    """The folder that holds all shards, and their paths below it."""
    whole = [shard.absolute() for shard in shards]
    root = Path(os.path.commonpath({str(shard.parent) for shard in whole}))
    return root, [shard.relative_to(root).as_posix() for shard in whole]


def wids_before(
    folder: Path, names: Collection[str], files: IndexFiles
) -> dict[str, dict[str, Any]]:
    """The entries of these shards in the wids JSON that is there; errors as `require_own_index`."""
    if "wids" not in files.formats:
        return {}
    path = folder / files.wids_name
    content = _content(path, files)
    fields = json_object(content)
    listed = [entry.get("url") for entry in shard_entries(content) or ()]
    others = [
        url
        for url in listed
        if isinstance(url, str) and _is_other(folder, url, names, files, base=fields.get("base"))
    ]
    elsewhere = "name another file for these shards (--wids train.json), or index all together"
    _refuse(path, "indexes", sorted(others), files, elsewhere)
    foreign = None if content is None else foreign_field(content)
    if foreign is not None:
        raise ConfigError(
            f"{_where(path, files)} is not overwritten: {foreign}, unlike an index that this "
            "package wrote; move it away, or name another file (--wids train.json)"
        )
    return entries_listed(content, folder_parts(str(folder)))


def sizes_before(folder: Path, files: IndexFiles) -> dict[str, int]:
    """The counts in the `sizes.json` that is there, of shards that may exist."""
    if "sizes" not in files.formats:
        return {}
    return {
        name: count
        for name, count in json_object(_content(folder / SIZES, files)).items()
        if is_count(count)
        and (parts := entry_parts(None, name))
        and _may_exist(folder.joinpath(*parts), files)
    }


def energon_before(root: Path, files: IndexFiles) -> dict[str, Any]:
    """The counts in energon's index of a folder, by the path below it."""
    path = root / FOLDER / INFO
    fields = json_object(_content(path, files))
    foreign = sorted(fields.keys() - INFO_FIELDS)
    if foreign:
        raise ConfigError(f"{path} is not overwritten: it has {foreign[0]!r}; move it away first")
    return json_object(fields.get("shard_counts"))


def listed_md5s(urls: Sequence[str], files: IndexFiles) -> list[ListedMd5 | None]:
    """The MD5 of each local shard in the wids JSON beside it; empty if none is held against it."""
    if files.output is not None or not {"wids", "members"} & set(files.formats):
        return []
    shards = [Path(url) for url in urls]
    known: dict[Path, dict[str, ListedMd5]] = {}
    for folder in dict.fromkeys(shard.parent for shard in shards):
        index = folder / files.wids_name
        entries = entries_listed(read_json(index), folder_parts(str(folder)))
        written_ns = stamp_of(index)[1] if entries else 0
        known[folder] = {
            name: ListedMd5(md5, size, index, written_ns)
            for name, entry in entries.items()
            if isinstance(md5 := entry.get("md5sum"), str)
            and is_number(size := entry.get("filesize"))
        }
    return [known[shard.parent].get(shard.name) for shard in shards]


def _card_before(root: Path, files: IndexFiles) -> list[ListedSplit]:
    path = root / CARD
    if not os.path.exists(path):  # noqa: PTH110 never raises
        return []
    return listed_in_card(read_regular(path, MAX_INDEX_BYTES), _where(path, files))


def _others(
    root: Path, split: ListedSplit, named: Collection[str], files: IndexFiles
) -> Iterator[str]:
    """Shards that a card lists in a split and that were not named now."""
    wild = [pattern for pattern in split.patterns if "*" in pattern]
    whole = frozenset(split.patterns)

    def is_listed(name: str) -> bool:
        return name in whole or any(fnmatchcase(name, pattern) for pattern in wild)

    if files.output is not None:  # nobody knows what is in the folder
        others = [pattern for pattern in split.patterns if pattern not in named]
        yield from others[: max(split.shards - sum(map(is_listed, named)), 0)]
        return
    for folder in dict.fromkeys(entry_parts(None, pattern)[:-1] for pattern in split.patterns):
        for path in root.joinpath(*folder).glob("*.tar"):
            name = path.relative_to(root).as_posix()
            if name not in named and is_listed(name):
                yield name


def _content(path: Path, files: IndexFiles) -> object:
    """The content of a JSON file; None if there is none, or a link to what is no JSON."""
    content = read_json(path)
    if content is None and os.path.isfile(path) and not path.is_symlink():  # noqa: PTH113
        raise ConfigError(
            f"{_where(path, files)} is not overwritten: it is no JSON; move it away first"
        )
    return content


def _is_other(
    folder: Path, url: str, names: Collection[str], files: IndexFiles, base: object = None
) -> bool:
    """Whether an entry may be of an existing shard that is not among these, by paths below here.

    An entry with the path of another folder is of that folder's shard, if it is there; else both
    were moved here.
    """
    parts = entry_parts(base, url)
    if url in names or "/".join(parts) in names:
        return False
    if files.output is not None and unquote("/".join(parts)) in names:
        return False  # as its URL escapes it
    path = Path(url)
    if not parts and (not is_local(url) or path.parent != folder.absolute()):
        return True  # a URL, or a path that leads out of the folder
    below = folder.joinpath(*parts)
    if len(parts) > 1 and files.output is None and os.path.isfile(below):  # noqa: PTH113
        return True
    return path.name not in names and _may_exist(folder / path.name, files)


def _may_exist(shard: Path, files: IndexFiles) -> bool:
    """Whether a shard in an old index may exist; for remote shards this is not checked."""
    return files.output is not None or os.path.isfile(shard)  # noqa: PTH113 never raises


def _refuse(path: Path, verb: str, others: Sequence[str], files: IndexFiles, remedy: str) -> None:
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise ConfigError(
            f"{_where(path, files)} also {verb} {others[0]!r}{more}, not named now; {remedy}"
        )


def _where(path: Path, files: IndexFiles) -> str:
    return f"the {path.name} beside the shards" if files.is_uploaded else str(path)
