"""What files beside shards claim about them: one reading for training and for the tools.

Such a file is data and may come from a stranger: it is only compared, by file name, with the shards
that the user named, and no path in it is opened.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightning_shards.shards.beside import SIZES, is_count, is_number, json_object
from lightning_shards.shards.counts.count_formats import REMOTE_NAMES, counts_in
from lightning_shards.shards.counts.wids import shard_entries

FACTS: Final = ("nsamples", "filesize", "md5sum")

_UNSAFE_NAME = re.compile(r"^/|^[A-Za-z][A-Za-z0-9+.-]*:|[${}\\]|(^|/)\.\.(/|$)")

_Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CountClaim:
    """The count that one file gives for one shard.

    Attributes:
        samples: Samples in the shard.
        source: Path or URL of the file that says so.
        size_bytes: Size of the shard when it was counted, if the file has it.
        md5: Its MD5 then, if the file has it.
    """

    samples: int
    source: str
    size_bytes: int | None = None
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """What one file says of one shard.

    Attributes:
        source: Path or URL of the file.
        facts: Those of `FACTS` that it states, as they stand there, which may be of any type.
    """

    source: str
    facts: Mapping[str, object]

    @property
    def counted(self) -> CountClaim | None:
        """The claim if it counts the samples; values of a wrong type are passed over."""
        samples, size, md5 = map(self.facts.get, FACTS)
        if not is_count(samples):
            return None
        known_size = size if is_number(size) else None
        return CountClaim(samples, self.source, known_size, md5 if isinstance(md5, str) else None)


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


def entry_parts(base: object, url: str) -> _Parts:
    """The relative path of an entry; empty if it does not lead below the index's folder."""
    path = f"{base.rstrip('/')}/{url}" if isinstance(base, str) and base else url
    parts = () if _UNSAFE_NAME.search(path) else path.split("/")
    return tuple(part for part in parts if part not in ("", "."))


def _stated(entry: Mapping[str, object]) -> dict[str, object]:
    return {name: entry[name] for name in FACTS if entry.get(name) is not None}


def _without_md5(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if name != "md5sum"}


def _are_equal(values: Sequence[Mapping[str, object]]) -> bool:
    return all(value == values[0] for value in values)
