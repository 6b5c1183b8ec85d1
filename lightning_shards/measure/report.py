"""The line at the end of a fit, with the change to make, and the progress in a mixture."""

import math
from collections.abc import Sequence

from lightning_shards.errors import count_of
from lightning_shards.loader import ShardLoader
from lightning_shards.measure.rates import (
    ENOUGH_STEPS,
    RunContext,
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


def write_report(ranks: Sequence[TimeTotals], context: RunContext) -> str:
    """One line: which side is slower, by which figures, and after enough steps what to change.

    Args:
        ranks: Time totals of each rank. If there are only figures of one rank among several, the
            report says so.
        context: The workers, the machine and the device.
    """
    rates = Throughput(in_lockstep(ranks), context)
    said = {
        "loader-bound": f"the trainer could take {rates.headroom:.1f}x what the loader gives",
        "trainer-bound": f"the loader could give {rates.headroom:.1f}x what the trainer takes",
        "balanced": "loader and trainer are within 10% of each other",
    }
    steps, alone = rates.totals.batches, len(ranks) < context.world_size
    few = f"unsure ({steps:.0f} of at least {ENOUGH_STEPS} steps), perhaps "
    advice = f"; to change: {advise_change(rates, find_slow_rank(ranks))}"
    return (
        f"data throughput: {few * (steps < ENOUGH_STEPS)}{rates.side}: {said[rates.side]} "
        f"({'rank 0 alone: ' * alone}trained {rate_text(rates.trained)} samples/s, loader alone "
        f"{rate_text(rates.loader)}, trainer alone {rate_text(rates.trainer)}, waited for data "
        f"{rates.fraction('wait'):.1%} of the time{_stages_text(rates.totals)}"
        f"{_fetched_text(rates.totals) * rates.totals.is_fetched})"
        f"{advice * (steps >= ENOUGH_STEPS)}"
    )


def _stages_text(totals: TimeTotals) -> str:
    shares = sorted(totals.stage_shares().items(), key=lambda share: -share[1])
    named = [f"{stage} {share:.0%}" for stage, share in shares if share >= NAMED]
    return f"; the loader's time: {', '.join(named)}" if named else ""


def _fetched_text(job: TimeTotals) -> str:
    """What all ranks have fetched from afar, whose price users know.

    >>> _fetched_text(TimeTotals(requests=1930, fetched_bytes=12.3e9, read_bytes=23.6e9))
    '; fetched 12.3 GB in 1,930 requests, 48% of 23.6 GB came from the cache'
    """
    requests = count_of(round(job.requests), "request")
    return (
        f"; fetched {job.fetched_bytes / 1e9:,.3g} GB in {requests}, {job.cached_fraction:.0%} of "
        f"{job.read_bytes / 1e9:,.3g} GB came from the cache"
    )


def advise_change(throughput: Throughput, slow_rank: int | None) -> str:
    """The one change that helps most, or that none is needed."""
    if slow_rank is not None:
        return (
            f"find out what slows the loader of rank {slow_rank}, which holds all others: where "
            "its machine reads from, and what else runs there"
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
