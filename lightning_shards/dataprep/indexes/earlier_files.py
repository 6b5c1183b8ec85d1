"""What index files that are there already say of shards."""

from collections.abc import Sequence
from pathlib import Path

from lightning_shards.dataprep.indexes.wanted_files import IndexFiles
from lightning_shards.dataprep.inspection.listed_shards import ListedMd5
from lightning_shards.shards.beside import is_number, read_json
from lightning_shards.shards.counts.wids import entries_by_name
from lightning_shards.shards.regular_files import stamp_of


def listed_md5s(urls: Sequence[str], files: IndexFiles) -> list[ListedMd5 | None]:
    """The MD5 of each local shard in the wids JSON beside it; empty if none is held against it."""
    if files.output is not None or not {"wids", "members"} & set(files.formats):
        return []
    shards = [Path(url) for url in urls]
    known: dict[Path, dict[str, ListedMd5]] = {}
    for folder in dict.fromkeys(shard.parent for shard in shards):
        index = folder / files.wids_name
        entries = entries_by_name(read_json(index))
        written_ns = stamp_of(index)[1] if entries else 0
        known[folder] = {
            name: ListedMd5(md5, size, index, written_ns)
            for name, entry in entries.items()
            if isinstance(md5 := entry.get("md5sum"), str)
            and is_number(size := entry.get("filesize"))
        }
    return [known[shard.parent].get(shard.name) for shard in shards]
