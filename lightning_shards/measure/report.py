"""The report at the end of a fit: the figures, the bottleneck, the change to make, and a plot."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.measure.rates import (
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
from lightning_shards.plan.place import Cursor
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.source import Source

WORTH_A_CHANGE = 0.1
"""Share of the time lost to waiting at which even a loader that is fast enough is blamed."""

NAMED = 0.05
"""Share of the loader's time at which a stage is named."""

_PLOT_SUFFIXES = (".pdf", ".png", ".svg")

_RankColumn = tuple[Throughput, SlowRank | None]


@dataclass(frozen=True, slots=True)
class RunContext:
    """The workers, the machine and the device of a run, which the figures do not show.

    Attributes:
        num_workers: Workers of a rank, with each thread of a process; 0 for the trainer's own
            thread.
        cores: Processor cores of a machine for each of its ranks, at least 1.
        world_size: Number of ranks.
        device: Type of the device, such as `cpu` or `cuda`.
        threads_per_worker: Workers for each one of the setting `num_workers`.
        connections: Requests that a node may have under way; 0: no shard is remote.
    """

    num_workers: int
    cores: int
    world_size: int
    device: str
    threads_per_worker: int = 1
    connections: int = 0

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
    throughput, _ = next(iter(columns.values()))
    slow = find_steady_slow_rank(list(spans.values()))
    if not throughput.totals.samples:
        return "data throughput: nothing was trained"
    lines = [_verdict(throughput), *_table(columns, context)]
    lines += _describe_stages(throughput.totals)
    if len(next(iter(spans.values()))) < context.world_size:
        lines.append("these are the figures of rank 0 alone: the fit was interrupted")
    elif slow:
        lines.append(
            f"slowest rank: rank {slow.rank} holds all others by its loader: it waited for data "
            f"{slow.fraction:.1%} of the time, the median rank {slow.median:.1%}"
        )
    return "\n".join([*lines, f"to change: {advise_change(throughput, slow, context)}"])


def _verdict(rates: Throughput) -> str:
    """One line that says which side is slower, by how much, and by which figures."""
    said = {
        "loader-bound": f"the trainer could take {rates.headroom:.1f}x what the loader gives",
        "trainer-bound": f"the loader could give {rates.headroom:.1f}x what the trainer takes",
        "balanced": "loader and trainer are within 10% of each other",
    }
    side, steps = rates.side, rates.totals.batches
    few = f"unsure ({steps:.0f} of at least {ENOUGH_STEPS} steps), perhaps "
    return (
        f"data throughput: {few * (steps < ENOUGH_STEPS)}{side}: {said[side]} "
        f"(trained {rate_text(rates.trained)} samples/s, loader alone {rate_text(rates.loader)}, "
        f"trainer alone {rate_text(rates.trainer)}, "
        f"waited for data {rates.wait_fraction:.1%} of the time)"
    )


def _describe_stages(totals: TimeTotals) -> list[str]:
    shares = totals.stage_shares()
    largest_first = sorted(shares, key=lambda stage: -shares[stage])
    named = [f"{stage} {shares[stage]:.0%}" for stage in largest_first if shares[stage] >= NAMED]
    return [f"the loader's time: {', '.join(named)}"] if named else []


def advise_change(throughput: Throughput, slow: SlowRank | None, context: RunContext) -> str:
    """The one change that helps most, or that none is needed."""
    if slow and slow.fraction > 2 * slow.median:
        return (
            f"find out what slows the loader of rank {slow.rank}: where its machine reads from, "
            "and what else runs there"
        )
    if throughput.side == "loader-bound" or throughput.starved_fraction > WORTH_A_CHANGE:
        return _advise_loader(throughput, context)
    if throughput.side == "balanced":
        return "nothing: neither waits for the other; a faster model will need more workers"
    return "nothing in the loader: more workers change nothing, only a faster model does"


def _advise_loader(throughput: Throughput, context: RunContext) -> str:
    now = context.num_workers // context.threads_per_worker
    most = max(1, context.cores // context.threads_per_worker)
    shares = throughput.totals.stage_shares()
    longest = max(shares, key=shares.__getitem__, default="")
    if longest == "fetch":
        return (
            "let `lightning-shards cache fill` fetch the shards before the fit, or raise cache_gib "
            f"or connections (now {context.connections} a node): the workers wait for the network "
            f"{shares[longest]:.0%} of their time"
        )
    if throughput.loader >= throughput.trainer and now:
        return (
            "raise prefetch_factor: the workers are fast enough, but their batches come unevenly "
            "or are too small to be handed over one by one"
        )
    # The trainer's own thread counts as one worker in the rates.
    wanted = math.ceil(max(1, now) * throughput.trainer / max(throughput.loader, 1e-9))
    wanted = max(wanted, now + 1)
    own = ": the trainer's own thread makes the batches" * (now == 0)
    if wanted <= most:
        return f"set num_workers to {wanted} (now {now}{own})"
    if now < most:
        cores = "all cores of a rank"
        return f"set num_workers to {most}, {cores} (now {now}{own}; {wanted} would do)"
    of_time = f" ({longest} takes {shares[longest]:.0%} of their time)" if longest else ""
    return (
        f"make samples cheaper to load{of_time}: {wanted} workers a rank would do, and {now} "
        f"already fill its {count_of(context.cores, 'core')}"
    )


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
    width = max(map(len, rows))
    return [
        f"  {name:<{width}}" + "".join(f"{value:>13}" for value in values)
        for name, values in rows.items()
    ]


def fetched_text(job: TimeTotals) -> str:
    """What a job has fetched, in one line.

    >>> job = TimeTotals(requests=1930, repeated=4, fetched_bytes=12.3e9, read_bytes=23.6e9)
    >>> fetched_text(job)
    'fetched 12.3 GB in 1,930 requests (4 repeated), 48 % of 23.6 GB came from the cache'
    """
    return (
        f"fetched {job.fetched_bytes / 1e9:,.3g} GB in {count_of(round(job.requests), 'request')} "
        f"({job.repeated:,.0f} repeated), {100 * job.cached_fraction:.0f} % of "
        f"{job.read_bytes / 1e9:,.3g} GB came from the cache"
    )


@dataclass(frozen=True, slots=True)
class MixtureProgress:
    """How far a run has come in each component of its mixture: arithmetic on the cursor.

    Attributes:
        slots: Where in the sequence each component stands.
        pass_samples: Samples of each component, in the order of `slots.names`; None if unknown.
    """

    slots: MixtureSlots
    pass_samples: tuple[int | None, ...]

    @classmethod
    def of(cls, source: Source) -> Self | None:
        """That of the mixture which a source reads.

        None if it is no mixture, or if all epochs repeat the first one, so that a cursor says
        nothing about the run.
        """
        description = source.describe()
        if description.mixture is None or description.index is None or source.epochs.pinned:
            return None
        parts = description.index.components
        return cls(description.mixture.slots, tuple(part.known_samples for part in parts))

    def metrics(self, cursor: Cursor) -> dict[str, float]:
        """The figures before a cursor, by the names under which loggers show them.

        Samples at the end of an epoch that no step serves are counted once the epoch is over: the
        sequence of the mixture goes on behind them.
        """
        run_position = cursor.epoch * self.slots.epoch_samples + cursor.samples
        metrics: dict[str, float] = {}
        of_components = zip(self.slots.names, self.slots.before(run_position).tolist(), strict=True)
        for (name, samples), of_pass in zip(of_components, self.pass_samples, strict=True):
            metrics[f"data/component/{name}/samples"] = float(samples)
            if of_pass:
                metrics[f"data/component/{name}/passes"] = samples / of_pass
        return metrics


def require_plot(path: str) -> None:
    """Check before a run that its plot can be made at the end.

    Raises:
        ConfigError: Matplotlib is missing, or the suffix is none of the supported ones.
    """
    if Path(path).suffix not in _PLOT_SUFFIXES:
        raise ConfigError(f"plot={path!r} must be a file that ends in {', '.join(_PLOT_SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"plot={path!r} needs matplotlib, which is not installed: "
            '`pip install "lightning-shards[plot]"`, or leave plot out'
        )


def save_plot(path: str, windows: Sequence[TimeTotals]) -> None:
    """Draw the mean time of a step in each window, and its mean wait, in milliseconds."""
    from matplotlib.figure import Figure

    windows = [window for window in windows if window.batches]
    steps = list(accumulate((window.batches for window in windows), initial=0.0))
    figure: Any = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    step = [1000 * window.wall_s / window.batches for window in windows]
    wait = [1000 * window.wait_s / window.batches for window in windows]
    axes.stairs(step, steps, label="step")
    axes.stairs(wait, steps, label="of it, waiting for data", fill=True)
    axes.set(xlabel="step of this fit", ylabel="ms a step (rank 0)", ylim=(0, None))
    axes.legend()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
