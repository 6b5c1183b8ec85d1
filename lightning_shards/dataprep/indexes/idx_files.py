"""The small indexes that DALI and energon read beside each tar, made from its members.

DALI's (`wds2idx`, v1.2) is text; its offsets are those of the data::

    v1.2 2
    cls 512 1 a.cls jpg 1536 602 a.jpg
    cls 4096 1 b.cls jpg 5120 602 b.jpg

energon's is little-endian uint64: the offsets of the first header of each sample, and of the end of
the archive.
"""

import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from lightning_shards.dataprep.earlier_claims import DALI_VERSIONS, with_own_stems
from lightning_shards.dataprep.inspection.layout import lay_out
from lightning_shards.errors import ConfigError
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import group_members, walk_members

_SPACE = re.compile(r"\s")


def dali_path(shard: str | PathLike[str]) -> Path:
    """The path of the index that `wds2idx` writes: `data/a.idx` for `data/a.b.tar`."""
    path = Path(shard)
    return path.with_name(path.name.partition(".")[0] + ".idx")


def require_own_dali_paths(shards: Iterable[str]) -> None:
    """Check that the DALI index of each shard is not that of another tar in its folder, too.

    Raises:
        ConfigError: It is; of several tars, one that is named like the index may have it.
    """
    folders: dict[Path, set[str]] = {}
    for shard in map(Path, shards):
        folders.setdefault(shard.parent, set()).add(shard.name)
    for folder, names in folders.items():
        tars = names.union(path.name for path in folder.glob("*.tar"))
        for name in sorted(names - with_own_stems(tars)):
            index = dali_path(folder / name)
            other = min(tar for tar in tars - {name} if dali_path(folder / tar) == index)
            raise ConfigError(
                f"DALI's index of {folder / name} is {index.name!r}, by its name up to the first "
                f"dot, and so is that of {other!r}; rename the shards, or leave out the format dali"
            )


def energon_path(shard: str | PathLike[str]) -> Path:
    """The path of energon's index of a shard."""
    path = Path(shard)
    return path.with_name(path.name + ".idx")


def dali_index(shard: str | PathLike[str]) -> str:
    """The contents of DALI's index of a shard; extensions are in the same case as in the tar.

    Bytes of names that are not UTF-8 are surrogates.

    Raises:
        ConfigError: The shard holds no sample, or a name with a space, which the format lacks.
    """
    url = str(shard)
    lines: list[str] = []
    with open_tar(url) as data:
        for _, fields in group_members(walk_members(data, url), url):
            entries: list[str] = []
            for suffix, member in fields.items():
                if _SPACE.search(member.name):
                    raise ConfigError(
                        f"DALI's index cannot hold the name {member.name!r} of {url}: it has a "
                        "space; pack the shard again with other names"
                    )
                extension = member.name[len(member.name) - len(suffix) :]
                entries.append(f"{extension} {member.offset} {member.size} {member.name}")
            lines.append(" ".join(entries))
    if not lines:
        raise ConfigError(f"DALI's index needs a sample at least, and {url} has none; leave it out")
    return "\n".join([f"{DALI_VERSIONS[-1]} {len(lines)}", *lines, ""])


def energon_index(table: MemberTable, shard: str | PathLike[str]) -> bytes:
    """The contents of energon's index of a shard."""
    return lay_out(table, shard).sample_starts(table).astype("<u8").tobytes()
