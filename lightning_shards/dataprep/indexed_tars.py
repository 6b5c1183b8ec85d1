"""What earlier indexes say of tars whose samples are to be written anew.

Shards that are written from a damaged tar get checksums of their own, by which all is well. So its
samples are held against the counts, sizes and crc32s that lie beside the tar or in the cache, as
training and `verify` read them, before they are taken and as they are copied.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing

from lightning_shards.dataprep.input_files import INDEXED_ANEW
from lightning_shards.dataprep.verify import have_same_extents, known_tables
from lightning_shards.errors import DamagedShardError, IndexMismatchError
from lightning_shards.shards.counts import CountClaim, believed_claims
from lightning_shards.shards.index import names_by_folder
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import split_url


def counts_beside(paths: Sequence[str]) -> dict[str, CountClaim]:
    """The counts that files beside these local tars give for them, by path.

    Raises:
        IndexMismatchError: Two files disagree, or a tar has another size than was indexed.
    """
    path_of = {split_url(path): path for path in paths}
    counts: dict[str, CountClaim] = {}
    with closing(Storages()) as storages:
        for folder, names in names_by_folder(path_of).items():
            claims = believed_claims(folder, names, path_of, storages)
            counts |= {path_of[folder, name]: claim for name, claim in claims.items()}
    return counts


def indexed_crc32s(path: str, claim: CountClaim | None, cache: CacheFolder) -> Mapping[int, int]:
    """The crc32s of the members of a local tar by the offsets of their data, as far as known.

    `claim` is its count by a file beside it, if there is one.

    Raises:
        IndexMismatchError: It holds another number of samples than that file counts.
        DamagedShardError: It is not one whole tar archive, or has other members than were indexed.
    """
    known = [table for table in known_tables(path, cache)[0] if table.crc32 is not None]
    if claim is None and not known:
        return {}
    table = scan_members(path)
    if claim is not None and claim.samples != table.num_samples:
        raise IndexMismatchError(
            f"{path} changed since it was indexed: it holds {table.num_samples:,} samples, "
            f"{claim.samples:,} by {claim.source}; fetch it again, or, if it was written anew, run "
            "`lightning-shards index` on it or delete that file"
        )
    for earlier in known:
        if not have_same_extents(earlier, table):
            raise DamagedShardError(
                f"{path} has other members than when it was indexed: {table.num_samples:,} "
                f"samples, {earlier.num_samples:,} then; {INDEXED_ANEW}"
            )
    crc32s = known[0].crc32 if known else None
    if crc32s is None:
        return {}
    return dict(zip(table.offsets.tolist(), crc32s.tolist(), strict=True))
