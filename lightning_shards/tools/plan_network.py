"""The part of `lightning-shards plan` about remote shards: what a node fetches and keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightning_shards.errors import count_of
from lightning_shards.plan.mixtures.composition import samples_of_epoch
from lightning_shards.plan.pieces import WINDOW
from lightning_shards.shards.remote.cache.limits import GIB, CacheNeed, kept_fraction, limit_for
from lightning_shards.shards.remote.cache.run_cache import (
    blocks_of_window,
    is_drawn_anew,
    working_set_of,
)
from lightning_shards.shards.remote.fetching.fetch_needs import (
    FetchNeeds,
    NodeShare,
    ReadData,
    fetch_needs,
    suitable_run,
)
from lightning_shards.shards.storage.schemes import MakeRemoteStorage
from lightning_shards.shards.urls import is_local
from lightning_shards.tools.console import human

if TYPE_CHECKING:
    from lightning_shards.config.splits import SplitConfig
    from lightning_shards.plan.epoch import EpochPlan
    from lightning_shards.readers.source import SourceDescription
    from lightning_shards.shards.index import ShardIndex

RATE: Final = 1000.0
"""Samples a second that a rank trains, if none is given: images of 100 kB by a fast GPU."""


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """A remote component of a mixture, or all shards of a split that has no components.

    Attributes:
        name: Of the component; empty if there are none.
        data: What is read.
        share: Its part of the samples of an epoch.
        passes: How often an epoch of a mixture passes it; 1 where there are no components.
    """

    name: str
    data: ReadData
    share: float = 1.0
    passes: float = 1.0

    def needs(self, node: NodeShare) -> FetchNeeds:
        """What a node fetches of it that keeps nothing."""
        return fetch_needs(self.data, node._replace(samples=node.samples * self.share))

    def repeated(self, kept: float) -> float:
        """The part of `needs` that a node fetches in its first epoch, which may pass it again."""
        again = max(0.0, self.passes - 1)
        return (1 + again * (1 - kept)) / (1 + again)

    @property
    def is_drawn(self) -> bool:
        """Whether runs are drawn anew in each epoch, so that none of its pieces comes again."""
        return is_drawn_anew(self.data.sampling, self.data.size_bytes, self.data.samples)

    @property
    def block(self) -> int:
        """Samples that are shuffled together, or read as if they were."""
        return self.data.block if self.data.block > 1 else WINDOW

    def working_set_bytes(self, blocks: int, prepared: int) -> int:
        """With so many blocks in a window, and so many samples of an epoch prepared at once."""
        data = self.data
        window, own = blocks * self.block, round(prepared * self.share)
        is_kept = data.has_pieces
        return working_set_of(data.size_bytes, data.samples, window, own) if is_kept else 0


@dataclass(frozen=True)
class RemotePlan:
    """Remote shards of a split, and how training fetches them.

    Attributes:
        parts: What is read from afar.
        size_bytes: Bytes of all shards of the split; None if they are not known.
        need: What the configured cache is told of it; None if there is no cache.
        workers: Processes of a rank that prepare batches, at least 1.
        rate: Samples a second that a rank trains.
    """

    parts: tuple[FetchedPart, ...]
    size_bytes: int | None
    need: CacheNeed | None
    workers: int
    rate: float

    def row(self, plan: "EpochPlan", ranks: int) -> dict[str, Any]:
        """The figures of one node with so many ranks."""
        share = ranks / plan.world_size
        node = NodeShare(share, (plan.served + plan.padded) * share, plan.steps * ranks)
        needs = [part.needs(node) for part in self.parts]
        tables = 0 if self.need is None else self.need.tables_bytes
        held = [
            each.size_bytes / part.passes
            for part, each in zip(self.parts, needs, strict=True)
            if each.is_kept and part.passes
        ]
        prepared = plan.batch_size * self.workers * ranks
        of_world = plan.batch_size * self.workers * plan.world_size
        blocks = blocks_of_window(of_world, sum(part.block for part in self.parts))
        working_set = sum(part.working_set_bytes(blocks, prepared) for part in self.parts)
        is_drawn = all(part.is_drawn for part in self.parts)
        need = CacheNeed("", 0, round(sum(held)), working_set, tables, is_drawn=is_drawn)
        kept = 0.0
        if self.need is not None and held:
            kept = kept_fraction([need._replace(limit_bytes=self.need.limit_bytes)])
        row = self._first_epoch(needs, kept, plan.steps * plan.batch_size / self.rate)
        if not any(part.data.has_pieces for part in self.parts):
            return row
        later = sum(each.size_bytes * (1 - kept * each.is_kept) for each in needs)
        return row | {
            "working_set_bytes": working_set,
            "kept_fraction": kept,
            "bytes_of_later_epochs": round(later),
            "cache_bytes_for_half": limit_for(0.5, need) if held and not is_drawn else None,
            "cache_bytes_for_all": limit_for(1.0, need) if held and not is_drawn else None,
        }

    def _first_epoch(
        self, needs: Sequence[FetchNeeds], kept: float, seconds: float
    ) -> dict[str, Any]:
        """What is fetched with a cache that is empty at first."""
        parts = [
            part.repeated(kept * each.is_kept) for part, each in zip(self.parts, needs, strict=True)
        ]
        size = round(sum(n.size_bytes * part for n, part in zip(needs, parts, strict=True)))
        requests = round(sum(n.requests * part for n, part in zip(needs, parts, strict=True)))
        return {
            "bytes_to_fetch": size,
            "requests": requests,
            "requests_per_s": requests / seconds if seconds else 0.0,
            "bytes_per_s": size / seconds if seconds else 0.0,
        }

    def document(self) -> dict[str, Any]:
        """What is the same for any number of ranks."""
        ahead = [part.data for part in self.parts if part.data.has_pieces]
        pieces = sum(data.num_pieces for data in ahead)
        size = sum(data.size_bytes for data in ahead)
        return {
            "rate": self.rate,
            "pieces": pieces if ahead else None,
            "piece_bytes": round(size / max(pieces, 1)) if ahead else None,
            "cache_gib": None if self.need is None else self.need.limit_bytes / GIB,
            "suitable": next(filter(None, map(_suitable, self.parts)), None),
        }


def _suitable(part: FetchedPart) -> dict[str, Any] | None:
    """A longer run and block, and of which component; None if none is needed."""
    longer = suitable_run(part.data)
    if longer is None:
        return None
    of = {"component": part.name, "piece_bytes": round(part.data.piece_bytes)} if part.name else {}
    return longer._asdict() | of


def remote_plan(
    description: "SourceDescription",
    size_bytes: int | None,
    config: "SplitConfig",
    *,
    workers: int,
    rate: float,
) -> RemotePlan | None:
    """The plan of a split's remote shards; None if their counts or sizes are not known."""
    index = description.index
    makers = [*(description.storages or {}).values()]
    caches = [each.cache for each in makers if isinstance(each, MakeRemoteStorage) and each.cache]
    need = caches[0].need if caches else None
    if index is None or index.counts is None:
        return None
    reads_bytes = size_bytes
    if size_bytes is None and need is not None:
        reads_bytes = need.reads_bytes
        size_bytes = None if any(map(is_local, index.urls)) else reads_bytes
    parts = _parts(description, index, reads_bytes, config)
    return None if parts is None else RemotePlan(parts, size_bytes, need, workers, rate)


def _parts(
    description: "SourceDescription",
    index: "ShardIndex",
    size_bytes: int | None,
    config: "SplitConfig",
) -> tuple[FetchedPart, ...] | None:
    """What is read from afar; None if the bytes of some of it are not known."""
    if description.mixture is None:
        data = _read_data(index, size_bytes, description.sampling, config, description)
        return None if data is None else (FetchedPart("", data),)
    mean = _mean_of_unknown(index, size_bytes)
    in_epoch = samples_of_epoch(description.mixture.slots, 0).tolist()
    splits = config.component_splits().items()
    parts: list[FetchedPart] = []
    for (name, split), part, served in zip(splits, index.components, in_epoch, strict=True):
        if all(map(is_local, part.urls)):
            continue
        known = part.size_bytes
        if known is None and mean is not None:
            known = round(mean * (part.samples or 0))
        data = _read_data(part, known, split.sampling or "resampled", split, description)
        if data is None:
            return None
        share = served / max(sum(in_epoch), 1)
        parts.append(FetchedPart(name, data, share, served / max(data.samples, 1)))
    return tuple(parts)


def _mean_of_unknown(index: "ShardIndex", size_bytes: int | None) -> float | None:
    """Bytes of a sample of the remote components whose sizes are not known by themselves."""
    if size_bytes is None:
        return None
    remote = [part for part in index.components if not all(map(is_local, part.urls))]
    left = size_bytes - sum(part.size_bytes or 0 for part in remote)
    return left / max(sum(part.samples or 0 for part in remote if part.size_bytes is None), 1)


def _read_data(
    index: "ShardIndex",
    size_bytes: int | None,
    sampling: str,
    config: "SplitConfig",
    description: "SourceDescription",
) -> ReadData | None:
    if index.counts is None or size_bytes is None:
        return None
    run, block = config.shuffle_run, config.shuffle_block
    return ReadData(index.counts, size_bytes, sampling, run, block, description.is_streamed)


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
        size = network["suitable"].get("piece_bytes", network["piece_bytes"])
        name = network["suitable"].get("component")
        of = f" of component {name}" if name else ""
        notes.append(
            f"note: a request{of} brings {human(size)} on average, and most of its "
            f"time is waiting for the answer; take shuffle_run: {run} and shuffle_block: {block} "
            "(another order: only for a new run)"
        )
    return notes
