"""The part of `lightning-shards plan` about remote shards: what a node fetches and keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightning_shards.errors import count_of
from lightning_shards.plan.pieces import WINDOW
from lightning_shards.shards.remote.cache.limits import GIB, CacheNeed, kept_fraction, limit_for
from lightning_shards.shards.remote.cache.run_cache import RunSize
from lightning_shards.shards.remote.fetching.fetch_needs import (
    NodeShare,
    ReadData,
    fetch_needs,
    suitable_run,
)
from lightning_shards.shards.storage.schemes import MakeRemoteStorage
from lightning_shards.tools.console import human

if TYPE_CHECKING:
    from lightning_shards.config.splits import SplitConfig
    from lightning_shards.plan.epoch import EpochPlan
    from lightning_shards.readers.source import SourceDescription

RATE: Final = 1000.0
"""Samples a second that a rank trains, if none is given: images of 100 kB by a fast GPU."""


@dataclass(frozen=True)
class RemotePlan:
    """Remote shards of a split, and how training fetches them.

    Attributes:
        data: What is read.
        need: What the configured cache is told of it; None if there is no cache.
        workers: Processes of a rank that prepare batches, at least 1.
        rate: Samples a second that a rank trains.
    """

    data: ReadData
    need: CacheNeed | None
    workers: int
    rate: float

    def row(self, plan: "EpochPlan", ranks: int) -> dict[str, Any]:
        """The figures of one node with so many ranks."""
        share = ranks / plan.world_size
        served = (plan.served + plan.padded) * share
        needs = fetch_needs(self.data, NodeShare(share, served, plan.steps * ranks))
        seconds = plan.steps * plan.batch_size / self.rate
        row: dict[str, Any] = {
            "bytes_to_fetch": needs.size_bytes,
            "requests": needs.requests,
            "requests_per_s": needs.requests / seconds if seconds else 0.0,
            "bytes_per_s": needs.size_bytes / seconds if seconds else 0.0,
        }
        if not self.data.has_pieces:
            return row
        prepared = plan.batch_size * self.workers * ranks
        tables = 0 if self.need is None else self.need.tables_bytes
        block = self.data.block if self.data.block > 1 else WINDOW
        size = RunSize("", self.data.size_bytes, self.data.samples, tables, block, prepared)
        need = CacheNeed("", 0, needs.size_bytes, size.working_set_bytes, tables)
        kept = 0.0
        if self.need is not None and needs.is_kept:
            kept = kept_fraction([need._replace(limit_bytes=self.need.limit_bytes)])
        return row | {
            "working_set_bytes": size.working_set_bytes,
            "kept_fraction": kept,
            "bytes_of_later_epochs": round(needs.size_bytes * (1 - kept)),
            "cache_bytes_for_half": limit_for(0.5, need) if needs.is_kept else None,
            "cache_bytes_for_all": limit_for(1.0, need) if needs.is_kept else None,
        }

    def document(self) -> dict[str, Any]:
        """What is the same for any number of ranks."""
        longer = suitable_run(self.data)
        return {
            "rate": self.rate,
            "pieces": self.data.num_pieces if self.data.has_pieces else None,
            "piece_bytes": round(self.data.piece_bytes) if self.data.has_pieces else None,
            "cache_gib": None if self.need is None else self.need.limit_bytes / GIB,
            "suitable": None if longer is None else longer._asdict(),
        }


def remote_plan(
    told: "SourceDescription",
    size_bytes: int | None,
    config: "SplitConfig",
    *,
    workers: int,
    rate: float,
) -> RemotePlan | None:
    """The plan of a split's remote shards; None if their counts or sizes are not known."""
    index = told.index
    makers = [*(told.storages or {}).values()]
    caches = [each.cache for each in makers if isinstance(each, MakeRemoteStorage) and each.cache]
    need = caches[0].need if caches else None
    if size_bytes is None:
        size_bytes = need.reads_bytes if need is not None else None
    if size_bytes is None or index is None or index.counts is None:
        return None
    run, block = config.shuffle_run, config.shuffle_block
    data = ReadData(index.counts, size_bytes, told.sampling, run, block, told.is_streamed)
    return RemotePlan(data, need, workers, rate)


def remote_notes(network: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to say of remote shards below the table."""
    rate = (
        f"note: rates are for {network['rate']:,g} samples/s a rank (--rate); requests for member "
        "tables come on top once, two for each shard"
    )
    notes, row = [rate], rows[0]
    if row.get("cache_bytes_for_all"):
        gib, kept = network["cache_gib"], row["kept_fraction"]
        now = "there is no cache; " if gib is None else f"cache_gib={gib:,.4g} keeps {kept:.0%}; "
        notes.append(
            f"note: of what a node of {count_of(row['ranks'], 'rank')} fetches, {now}"
            f"{row['cache_bytes_for_half'] / GIB:,.4g} would keep half for later epochs, "
            f"{row['cache_bytes_for_all'] / GIB:,.4g} all"
        )
    if network["suitable"] is not None:
        run, block = network["suitable"]["run"], network["suitable"]["block"]
        notes.append(
            f"note: a request brings {human(network['piece_bytes'])} on average, and most of its "
            f"time is waiting for the answer; take shuffle_run: {run} and shuffle_block: {block} "
            "(another order: only for a new run)"
        )
    return notes
