"""The report at the end of a fit: the figures, the bottleneck, and the one change to make."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_shards.errors import count_of
from lightning_shards.profiling.network import NetworkContext, advise_network, size_text
from lightning_shards.profiling.rates import (
    ENOUGH_STEPS,
    IMBALANCE,
    SlowRank,
    Throughput,
    TimeTotals,
    find_slow_rank,
    find_steady_slow_rank,
    in_lockstep,
    rate_text,
)

WORTH_A_CHANGE = 0.1
"""Share of the time lost to waiting at which even a loader that is fast enough is blamed."""

NAMED = 0.05
"""Share of the loader's time at which a stage is named."""

_REMEDIES = {
    "open": "fewer and larger shards",
    "read": "smaller members, a faster disk",
    "fetch": "more of the shards in the cache",
    "decode": "smaller images, or crops that decode less",
    "transform": "fewer of them, or on the device",
    "collate": "smaller samples",
    "other": "fewer stages of a stream",
}

_RankColumn = tuple[Throughput, SlowRank | None]


@dataclass(frozen=True, slots=True)
class RunContext:
    """The workers, the machine and the device of a run, which the figures do not show.

    Attributes:
        num_workers: Workers of a rank, with each thread of a process; 0 for the trainer's own
            thread.
        cores: Processor cores of a machine for each of its ranks, at least 1.
        threads: Threads by which torch computes in each rank.
        world_size: Number of ranks.
        device: Type of the device, such as `cpu` or `cuda`.
        can_grow: Whether a larger setting `num_workers` gives more workers.
        network: How remote shards are fetched; None if all are at hand.
        threads_per_worker: Workers for each one of the setting `num_workers`.
    """

    num_workers: int
    cores: int
    threads: int
    world_size: int
    device: str
    can_grow: bool = True
    network: NetworkContext | None = None
    threads_per_worker: int = 1

    @property
    def configured(self) -> int:
        """The setting `num_workers`."""
        return self.num_workers // self.threads_per_worker

    @property
    def crowded_by_threads(self) -> bool:
        """Whether torch's threads compute on the same cores on which workers make batches."""
        is_crowded = self.threads + self.num_workers > self.cores
        return self.device == "cpu" and self.threads > 1 and self.num_workers > 0 and is_crowded

    def throughput(self, totals: TimeTotals) -> Throughput:
        """The rates that follow from these totals."""
        return Throughput(totals, max(1, self.num_workers), self.world_size)


def write_report(spans: Mapping[str, Sequence[TimeTotals]], context: RunContext) -> str:
    """The verdict in one line, then a table and the one change to make.

    Args:
        spans: Time totals of each rank, by the name of the time span; the first span is judged. If
            there are only figures of one rank among several, the report says so.
        context: The workers, the machine and the device.
    """
    columns: dict[str, _RankColumn] = {
        name: (context.throughput(in_lockstep(ranks)), find_slow_rank(ranks))
        for name, ranks in spans.items()
    }
    throughput, noticed = next(iter(columns.values()))
    slow = find_steady_slow_rank(list(spans.values()))
    verdict = throughput.verdict(_doubt([column for column, _ in columns.values()]))
    if not throughput.totals.samples:
        return verdict
    lines = [verdict, *_table(columns, context)]
    lines += _describe_stages(throughput.totals)
    if len(next(iter(spans.values()))) < context.world_size:
        lines.append("these are the figures of rank 0 alone: the fit was interrupted")
    elif slow:
        lines.append(f"slowest rank: {describe_slow_rank(slow)}")
    elif noticed:
        lines.append("slowest rank: unsure: the last epoch does not name it, or the steps are few")
    return "\n".join([*lines, f"to change: {advise_change(throughput, slow, context)}"])


def _doubt(columns: Sequence[Throughput]) -> str:
    """The reason why the side of the first column is not sure; empty if it is."""
    first, *others = columns
    if first.totals.batches < ENOUGH_STEPS:
        return f"{first.totals.batches:.0f} of at least {ENOUGH_STEPS} steps"
    if any({first.side, other.side} == {"loader-bound", "trainer-bound"} for other in others):
        return f"the last epoch was {others[-1].side}"
    return ""


def _describe_stages(totals: TimeTotals) -> list[str]:
    shares = totals.stage_shares()
    largest_first = sorted(shares, key=lambda stage: -shares[stage])
    named = [f"{stage} {shares[stage]:.0%}" for stage in largest_first if shares[stage] >= NAMED]
    return [f"the loader's time: {', '.join(named)}"] if named else []


def describe_slow_rank(slow: SlowRank) -> str:
    """A sentence that names the rank, the reason and the median that it is compared with."""
    if slow.part == "loader":
        took = f"it waited for data {slow.fraction:.1%} of the time, the median rank"
        return f"rank {slow.rank} holds all others by its loader: {took} {slow.median:.1%}"
    took = f"it takes {slow.fraction:.1%} of the time, the median rank's"
    return f"rank {slow.rank} holds all others by its forward pass: {took} {slow.median:.1%}"


def advise_change(throughput: Throughput, slow: SlowRank | None, context: RunContext) -> str:
    """The one change that helps most, or that none is needed."""
    if slow and slow.part == "loader" and slow.excess > slow.median:
        return (
            f"find out what slows the loader of rank {slow.rank}: where its machine reads from, "
            "and what else runs there"
        )
    if context.crowded_by_threads:
        return (
            f"set OMP_NUM_THREADS=1 and compare: torch computes by {context.threads} threads, and "
            f"they share the {count_of(context.cores, 'core')} of a rank with "
            f"{count_of(context.num_workers, 'worker')}"
        )
    lost = throughput.starved_fraction
    held_by = slow if slow and slow.part == "forward pass" else None
    if held_by and lost > max(WORTH_A_CHANGE, held_by.excess):
        held_by = None  # waiting costs more
    if throughput.side == "loader-bound" or (lost > WORTH_A_CHANGE and not held_by):
        if context.network is not None and throughput.totals.longest_stage == "fetch":
            return advise_network(throughput.totals, context.network)
        return _advise_loader(throughput, context)
    if held_by:
        return f"find out what slows the model on rank {held_by.rank}, its device or its machine"
    return _advise_trainer(throughput, context)


def _advise_trainer(throughput: Throughput, context: RunContext) -> str:
    if throughput.side == "balanced":
        return "nothing: neither waits for the other; a faster model will need more workers"
    now, cores = context.configured, context.cores
    enough = math.ceil(now * throughput.trainer / max(throughput.loader, 1e-9))
    if context.device == "cpu" and enough < now and context.num_workers >= cores:
        return (
            f"set num_workers to {enough} (now {now}): that would do, and they share the "
            f"{count_of(cores, 'core')} of a rank with the training"
        )
    return "nothing in the loader: more workers change nothing, only a faster model does"


def _advise_loader(throughput: Throughput, context: RunContext) -> str:
    now, most = context.configured, max(1, context.cores // context.threads_per_worker)
    # The trainer's own thread counts as one worker in the rates.
    wanted = math.ceil(max(1, now) * throughput.trainer / max(throughput.loader, 1e-9))
    if now == 0:
        few = min(max(wanted, 1), most)
        pool, kind = ("", "0") if context.can_grow else ("loader.pool to processes and ", "inline")
        return (
            f"set {pool}num_workers to {few} (now {kind}: the trainer's own thread makes the "
            "batches)"
        )
    if throughput.loader >= throughput.trainer:
        return (
            "raise prefetch_factor: the workers are fast enough, but their batches come unevenly "
            "or are too small to be handed over one by one"
        )
    wanted = max(wanted, now + 1)
    if now < most and not context.can_grow:
        return (
            "set loader.pool to processes (now threads: one makes small batches, whatever "
            "num_workers is, because others would wait for Python's lock)"
        )
    if wanted <= most:
        return f"set num_workers to {wanted} (now {now})"
    if now < most:
        return f"set num_workers to {most}, all cores of a rank (now {now}; {wanted} would do)"
    return (
        f"make samples cheaper to load ({_cheaper(throughput.totals)}): {wanted} workers a rank "
        f"would do, and {now} already fill its {count_of(context.cores, 'core')}"
    )


def _cheaper(totals: TimeTotals) -> str:
    """How to make the stage cheaper that takes longest."""
    stage = totals.longest_stage
    if stage is None:
        return "smaller images, fewer transforms"
    return f"{stage} takes {totals.stage_shares()[stage]:.0%} of their time: {_REMEDIES[stage]}"


def _table(columns: Mapping[str, _RankColumn], context: RunContext) -> list[str]:
    rates = [throughput for throughput, _ in columns.values()]
    waited = "waited for data" + ("" if context.device in ("cpu", "cuda") else ", at most")
    moved = "from loader to step" if context.device == "cpu" else "moved to the device"
    rows: dict[str, list[str]] = {
        "": list(columns),
        "trained, samples/s": [rate_text(rate.trained) for rate in rates],
        "loader alone, samples/s": [rate_text(rate.loader) for rate in rates],
        "trainer alone, samples/s": [rate_text(rate.trainer) for rate in rates],
        waited: [f"{rate.wait_fraction:.1%}" for rate in rates],
        moved: [f"{rate.transfer_fraction:.1%}" for rate in rates],
        "device starved, at most": [f"{rate.starved_fraction:.1%}" for rate in rates],
        "bottleneck": [rate.side.removesuffix("-bound") for rate in rates],
        "headroom": [f"{rate.headroom:.1f}x" for rate in rates],
        f"slowest rank, if over {IMBALANCE:.0%}": [
            str(slow.rank) if slow else "none" for _, slow in columns.values()
        ],
    }
    if context.device != "cuda":
        del rows["device starved, at most"]
    if context.world_size == 1:
        del rows[f"slowest rank, if over {IMBALANCE:.0%}"]
    if any(rate.totals.is_fetched for rate in rates):
        rows |= _network_rows(rates)
    width = max(map(len, rows))
    return [
        f"  {name:<{width}}" + "".join(f"{value:>13}" for value in values)
        for name, values in rows.items()
    ]


def _network_rows(rates: Sequence[Throughput]) -> dict[str, list[str]]:
    walls = [(rate.totals, max(rate.totals.wall_s, 1e-9)) for rate in rates]
    return {
        "fetched, all ranks": [
            f"{size_text(totals.fetched_bytes / wall_s)}/s" for totals, wall_s in walls
        ],
        "requests/s, all ranks": [rate_text(totals.requests / wall_s) for totals, wall_s in walls],
        "requests repeated": [f"{totals.repeated:,.0f}" for totals, _ in walls],
        "bytes from the cache": [f"{totals.cached_fraction:.0%}" for totals, _ in walls],
    }
