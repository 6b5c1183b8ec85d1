"""What lies beside remote shards: their member tables, and their counts."""

import json
import os
import shutil
from pathlib import Path

from benchmarks.remote.job import TIMES, RemoteJob
from benchmarks.remote.loaders import recommended, tables_folder
from lightning_shards.shards.beside import SIZES
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.table_bytes import published, published_url
from lightning_shards.shards.tables import TableStore, build_tables


def run(job: RemoteJob) -> dict[str, float]:
    """Write `<shard>.members` and `sizes.json` beside the files.

    Returns:
        Mean bytes of a table, the run and the block that are recommended, and their pieces.
    """
    shards = job.local_shards
    sizes = Path(shards[0]).with_name(SIZES)
    tables = [Path(published_url(path)) for path in shards]
    if not sizes.exists():
        store = TableStore(CacheFolder(tables_folder(job)), with_crc32=True)
        build_tables(shards, store)
        counts: dict[str, int] = {}
        for path, beside in zip(shards, tables, strict=True):
            table = store.table_of(path)
            beside.write_bytes(published(table))
            counts[Path(path).name] = len(table.sample_starts) - 1
        sizes.write_text(json.dumps(counts))
    _link(job, sizes)
    read = recommended(job)
    return {
        "table_bytes": sum(path.stat().st_size for path in tables) / len(tables),
        "run": read.run,
        "block": read.block,
        "pieces": read.num_pieces,
    }


def _link(job: RemoteJob, sizes: Path) -> None:
    """Give the shards and their tables the names that a long epoch reads."""
    named = job.long.local_shards
    long_sizes = Path(named[0]).with_name(sizes.name)
    if long_sizes.exists():  # the last thing that is made
        return
    shutil.rmtree(long_sizes.parent, ignore_errors=True)
    long_sizes.parent.mkdir(parents=True)
    known, counts = json.loads(sizes.read_text()), dict[str, int]()
    for path, link in zip(TIMES * job.local_shards, named, strict=True):
        os.link(published_url(path), published_url(link))
        os.link(path, link)
        counts[Path(link).name] = known[Path(path).name]
    long_sizes.write_text(json.dumps(counts))
