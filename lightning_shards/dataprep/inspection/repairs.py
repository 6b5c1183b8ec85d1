"""The repair of bad shards: their whole samples are saved to another folder."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_shards.dataprep.inspection.findings import Finding, finding_of
from lightning_shards.dataprep.inspection.known_tables import known_table
from lightning_shards.dataprep.inspection.salvage import DecoderOf, Salvage, salvage
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.errors import DamagedShardError, IndexMismatchError, StorageError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.local_copies import local_copy
from lightning_shards.shards.urls import redact


def repair_shards(
    urls: Sequence[str],
    save: Callable[[str], Salvage | Finding],
    findings: list[Finding],
    processes: int,
) -> dict[str, Salvage]:
    """The repairs by redacted URL; what kept others from being made is added to the findings."""
    repairs: dict[str, Salvage] = {}
    for url, each in zip(urls, map_parallel(save, urls, processes), strict=True):
        if isinstance(each, Finding):
            findings.append(each)
        else:
            repairs[redact(url)] = each
    return repairs


def repair_shard(
    url: str,
    *,
    folder: Path,
    cache: CacheFolder,
    settings: TransportSettings | None = None,
    decoder_of: DecoderOf | None = None,
) -> Salvage | Finding:
    """Save the whole samples of one shard to a folder; see `salvage`.

    A shard that cannot be fetched again is a finding: nothing is known to be lost.
    """
    try:
        with local_copy(url, cache, settings) as shard:
            return salvage(shard.path, folder, known_table(shard), decoder_of)
    except DamagedShardError as error:  # it is empty
        return Salvage(None, 0, {"": str(error)})
    except (StorageError, IndexMismatchError) as error:
        return finding_of(error, redact(url))
