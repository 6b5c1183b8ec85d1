"""The report at the end of a fit: the figures, the bottleneck, the change to make, and a plot."""

import importlib.util
import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.loader import ShardLoader
from lightning_shards.measure.rates import (
    ENOUGH_STEPS,
    RunContext,
    SlowRank,
    Throughput,
    TimeTotals,
    find_slow_rank,
    in_lockstep,
    rate_text,
)
from lightning_shards.state import read_count

WORTH_A_CHANGE = 0.1
"""Share of the time lost to waiting at which even a loader that is fast enough is blamed."""

NAMED = 0.05
"""Share of the loader's time at which a stage is named."""

_PLOT_SUFFIXES = (".pdf", ".png", ".svg")


def write_report(ranks: Sequence[TimeTotals], context: RunContext) -> str:
    """The verdict in one line, then a table and, after enough steps, the one change to make.

    Args:
        ranks: Time totals of each rank. If there are only figures of one rank among several, the
            report says so.
        context: The workers, the machine and the device.
    """
    rates, slow = Throughput(in_lockstep(ranks), context), find_slow_rank(ranks)
    lines = [_verdict(rates), *_table(rates), *_describe_stages(rates.totals)]
    if rates.totals.is_fetched:
        lines.append(fetched_text(rates.totals))
    if rates.totals.received_bytes:
        lines.append(_received_text(rates.totals, len(ranks)))
    if len(ranks) < context.world_size:
        lines.append("these are the figures of rank 0 alone: the fit was interrupted")
    elif slow:
        lines.append(
            f"slowest rank: rank {slow.rank} holds all others by its loader: it waited for data "
            f"{slow.fraction:.1%} of the time, the median rank {slow.median:.1%}"
        )
    advice = [f"to change: {advise_change(rates, slow)}"]
    return "\n".join([*lines, *advice * (rates.totals.batches >= ENOUGH_STEPS)])


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
        f"waited for data {rates.fraction('wait'):.1%} of the time)"
    )


def _describe_stages(totals: TimeTotals) -> list[str]:
    shares = sorted(totals.stage_shares().items(), key=lambda share: -share[1])
    named = [f"{stage} {share:.0%}" for stage, share in shares if share >= NAMED]
    return [f"the loader's time: {', '.join(named)}"] if named else []


def advise_change(throughput: Throughput, slow: SlowRank | None) -> str:
    """The one change that helps most, or that none is needed."""
    if slow and slow.fraction > 2 * slow.median:
        return (
            f"find out what slows the loader of rank {slow.rank}: where its machine reads from, "
            "and what else runs there"
        )
    if throughput.side == "loader-bound" or throughput.fraction("starved") > WORTH_A_CHANGE:
        return _advise_loader(throughput)
    if throughput.side == "balanced":
        return "nothing: neither waits for the other; a faster model will need more workers"
    return "nothing in the loader: more workers change nothing, only a faster model does"


def _advise_loader(throughput: Throughput) -> str:
    context = throughput.context
    now = context.num_workers // context.threads_per_worker
    most = max(1, context.cores // context.threads_per_worker)
    shares = throughput.totals.stage_shares()
    longest = max(shares, key=shares.__getitem__, default="")
    if longest == "fetch":
        return (
            "let `lightning-shards cache fill` fetch the shards before the fit, or raise cache_gib "
            f"or connections: the workers wait for the network {shares[longest]:.0%} of their time"
        )
    if throughput.loader >= throughput.trainer and throughput.totals.received_bytes:
        return (
            "let actors send fewer bytes a sample (uint8, smaller crops), or raise "
            "prefetch_factor: they are fast enough, and their batches come late over the network"
        )
    if throughput.loader >= throughput.trainer and now:
        return (
            "raise prefetch_factor: the workers are fast enough, but their batches come unevenly "
            "or are too small to be handed over one by one"
        )
    # The trainer's own thread counts as one worker in the rates.
    wanted = math.ceil(max(1, now) * throughput.trainer / max(throughput.loader, 1e-9))
    wanted = max(wanted, now + 1)
    if now < most:
        limit = f", all cores of a rank: {wanted} would do" if wanted > most else ""
        own = ": the trainer's own thread makes the batches" if now == 0 else ""
        return f"set num_workers to {min(wanted, most)}{limit} (now {now}{own})"
    of_time = f" ({longest} takes {shares[longest]:.0%} of their time)" if longest else ""
    return (
        f"make samples cheaper to load{of_time}: {wanted} workers a rank would do, and {now} "
        f"already fill its {count_of(context.cores, 'core')}"
    )


def _table(rates: Throughput) -> list[str]:
    rows = {
        "trained, samples/s": rate_text(rates.trained),
        "loader alone, samples/s": rate_text(rates.loader),
        "trainer alone, samples/s": rate_text(rates.trainer),
        "waited for data": f"{rates.fraction('wait'):.1%}",
        "from loader to step": f"{rates.fraction('transfer'):.1%}",
    }
    if rates.context.device == "cuda":
        rows["device starved, at most"] = f"{rates.fraction('starved'):.1%}"
    rows |= {
        "bottleneck": rates.side.removesuffix("-bound"),
        "headroom": f"{rates.headroom:.1f}x",
    }
    return [f"  {name:<24}{value:>13}" for name, value in rows.items()]


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


def _received_text(job: TimeTotals, ranks: int) -> str:
    per_s = job.received_bytes / ranks / max(job.wall_s, 1e-9)
    again = f"up to {count_of(round(job.remade), 'batch')} made again"
    return (
        f"received {job.received_bytes / 1e9:,.3g} GB from actors, {per_s / 1e6:,.3g} MB/s for "
        f"each rank; {count_of(round(job.restarts), 'restart')} of actors, {again}"
    )


def component_metrics(loader: ShardLoader) -> dict[str, float]:
    """How far a run has come in each component of its mixture, under the names of loggers.

    It is arithmetic on the place in the run. Samples at the end of an epoch that no step serves are
    counted once it is over: the sequence of the mixture goes on behind them. Empty if there is no
    mixture, or if all epochs repeat the first one, so that a place says nothing about the run.
    """
    source, description = loader.source, loader.source.describe()
    if description.mixture is None or description.index is None or source.epochs.pinned:
        return {}
    slots, state = description.mixture.slots, loader.state_dict()
    position = read_count(state, "epoch") * slots.epoch_samples + read_count(state, "samples")
    passed = slots.before(position).tolist()
    metrics: dict[str, float] = {}
    for name, samples, part in zip(slots.names, passed, description.index.components, strict=True):
        metrics[f"data/component/{name}/samples"] = float(samples)
        if part.known_samples:
            metrics[f"data/component/{name}/passes"] = samples / part.known_samples
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
