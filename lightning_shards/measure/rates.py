"""Rates of loader and trainer, the clocks behind them, and the rank that holds up the others.

Ranks are in lockstep: if one is late, all others wait for it inside the backward pass, which their
own clocks count as training. So the times of a job are the largest of its ranks and not the mean,
and **the rank whose trainer waited longest for its loader is the one that holds up all others**.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from operator import add, attrgetter, sub
from typing import Any, Literal, TypeAlias

import torch

from lightning_shards.samples.stage_clock import STAGES

IMBALANCE = 0.05
"""Share of the time that one rank must cost all others before it is named."""

BALANCED = 1.1
"""Loader and trainer count as equally fast if neither could do this many times the other's rate."""

ENOUGH_STEPS = 20
"""Steps below which a verdict is unsure."""

_WHOLE = 100
"""Rates of at least this many are shown without decimals."""

Side: TypeAlias = Literal["loader-bound", "trainer-bound", "balanced"]


def rate_text(rate: float) -> str:
    """A rate as text; below one sample a second, as of large language models, with decimals.

    >>> rate_text(12_345.6), rate_text(0.517)
    ('12,346', '0.517')
    """
    return f"{rate:,.0f}" if rate >= _WHOLE else f"{rate:.3g}"


@dataclass(frozen=True, slots=True)
class TimeTotals:
    """Sums over some steps of one rank.

    Attributes:
        batches: Number of steps.
        samples: Number of samples trained.
        wall_s: Wall-clock seconds, without validation and without the start of workers.
        wait_s: Seconds of `wall_s` that the trainer waited inside the loader's `next()`.
        starved_s: Seconds of waiting that count as lost for the device: all of `wait_s`, except on
            CUDA, where the device may have had work queued.
        produce_s: Seconds that workers spent on these samples, summed over workers.
        transfer_s: Seconds from when the loader hands out batches until they arrive at the step,
            moved to the device and through `device_transforms`.
        open_s: Seconds of `produce_s` for opening shards and finding members.
        read_s: Seconds of `produce_s` for reading bytes.
        decode_s: Seconds of `produce_s` for decoding.
        transform_s: Seconds of `produce_s` for transforms.
        collate_s: Seconds of `produce_s` for making batches.
        fetch_s: Seconds of `produce_s` for waiting for bytes of remote shards.
        requests: Requests for ranges of remote shards and their tables.
        repeated: Those of them that were made because one before had failed.
        fetched_bytes: Bytes that they brought.
        read_bytes: Bytes of remote shards that the batches were made of.
    """

    batches: float = 0.0
    samples: float = 0.0
    wall_s: float = 0.0
    wait_s: float = 0.0
    starved_s: float = 0.0
    produce_s: float = 0.0
    transfer_s: float = 0.0
    open_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0
    fetch_s: float = 0.0
    requests: float = 0.0
    repeated: float = 0.0
    fetched_bytes: float = 0.0
    read_bytes: float = 0.0

    @property
    def is_fetched(self) -> bool:
        """Whether the batches are made of remote shards."""
        return self.read_bytes > 0 or self.requests > 0

    @property
    def cached_fraction(self) -> float:
        """Share of the bytes read that did not have to be fetched for it, 0 to 1."""
        return max(0.0, 1 - self.fetched_bytes / self.read_bytes) if self.read_bytes else 0.0

    def stage_shares(self) -> dict[str, float]:
        """Each stage's share of the workers' time, 0 to 1; `other` is the rest.

        Empty if no stage was measured; without `fetch` where no shard is remote.
        """
        stages = STAGES if self.is_fetched else [stage for stage in STAGES if stage != "fetch"]
        spent = {stage: getattr(self, f"{stage}_s") for stage in stages}
        if not any(spent.values()):
            return {}
        spent["other"] = max(self.produce_s - sum(spent.values()), 0.0)
        return {stage: seconds / sum(spent.values()) for stage, seconds in spent.items()}

    def since(self, earlier: "TimeTotals") -> "TimeTotals":
        """The difference to earlier totals."""
        return TimeTotals(*map(sub, _sums(self), _sums(earlier)))

    def plus(self, later: "TimeTotals") -> "TimeTotals":
        """The sum of these totals and later ones."""
        return TimeTotals(*map(add, _sums(self), _sums(later)))


# Like `astuple`, which copies each number and takes ten times as long: each log calls it twice.
_sums: Callable[[TimeTotals], tuple[float, ...]] = attrgetter(
    *(total.name for total in fields(TimeTotals))
)


_SUMMED = ("requests", "repeated", "fetched_bytes", "read_bytes")
"""Totals of which a job has as much as its ranks together."""


def in_lockstep(ranks: Sequence[TimeTotals]) -> TimeTotals:
    """The totals of ranks in lockstep: the mean of samples, and the largest of each time.

    What was fetched is the sum of all ranks.
    """
    largest = TimeTotals(*(max(values) for values in zip(*map(_sums, ranks), strict=True)))
    samples = statistics.fmean(rank.samples for rank in ranks)
    sums = {name: sum(getattr(rank, name) for rank in ranks) for name in _SUMMED}
    return replace(largest, samples=samples, **sums)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates of the whole job, in samples per second over all ranks.

    Attributes:
        measured: Totals of one rank, or of all ranks in lockstep.
        num_workers: Workers of a rank that make batches at the same time.
        world_size: Number of ranks.
    """

    totals: TimeTotals
    num_workers: int
    world_size: int

    @property
    def trained(self) -> float:
        """The rate of training."""
        return self.totals.samples * self.world_size / max(self.totals.wall_s, 1e-9)

    @property
    def loader(self) -> float:
        """The rate that the workers could reach if they never had to wait."""
        per_worker = self.totals.samples / max(self.totals.produce_s, 1e-9)
        return per_worker * self.num_workers * self.world_size

    @property
    def trainer(self) -> float:
        """The rate that the trainer could reach if its device never starved."""
        busy_s = self.totals.wall_s - self.totals.starved_s
        return self.totals.samples * self.world_size / max(busy_s, 1e-9)

    @property
    def wait_fraction(self) -> float:
        """Share of the time that the trainer waited for data, 0 to 1."""
        return self.totals.wait_s / max(self.totals.wall_s, 1e-9)

    @property
    def starved_fraction(self) -> float:
        """Share of the time that the device was idle because data was missing, 0 to 1."""
        return self.totals.starved_s / max(self.totals.wall_s, 1e-9)

    @property
    def transfer_fraction(self) -> float:
        """Share of the time that batches took to be moved to the device, 0 to 1."""
        return self.totals.transfer_s / max(self.totals.wall_s, 1e-9)

    @property
    def headroom(self) -> float:
        """The faster side's possible rate divided by the slower side's; at least 1."""
        slower, faster = sorted((self.loader, self.trainer))
        return faster / max(slower, 1e-9) if faster else 1.0

    @property
    def side(self) -> Side:
        """The slower side, or the word for loader and trainer being equally fast."""
        if self.headroom < BALANCED:
            return "balanced"
        return "loader-bound" if self.loader < self.trainer else "trainer-bound"

    def metrics(self, prefix: str = "data/") -> dict[str, float]:
        """The figures by the names under which loggers show them."""
        return {
            f"{prefix}samples_per_s": self.trained,
            f"{prefix}loader_samples_per_s": self.loader,
            f"{prefix}trainer_samples_per_s": self.trainer,
            f"{prefix}wait_fraction": self.wait_fraction,
            f"{prefix}transfer_fraction": self.transfer_fraction,
            **{
                f"{prefix}loader_{stage}_fraction": share
                for stage, share in self.totals.stage_shares().items()
            },
            **{f"{prefix}{name}": value for name, value in self._network_metrics().items()},
        }

    def _network_metrics(self) -> dict[str, float]:
        """Rates of what was fetched, by all ranks in the totals; empty if no shard is remote."""
        totals, wall_s = self.totals, max(self.totals.wall_s, 1e-9)
        if not totals.is_fetched:
            return {}
        return {
            "fetched_bytes_per_s": totals.fetched_bytes / wall_s,
            "requests_per_s": totals.requests / wall_s,
            "repeated_requests": totals.repeated,
            "cached_fraction": totals.cached_fraction,
        }


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank whose loader costs all others more than `IMBALANCE` of the time.

    Attributes:
        rank: Number of the rank.
        fraction: Share of the time that it waited for its loader, 0 to 1.
        median: Median of this share over all ranks.
    """

    rank: int
    fraction: float
    median: float


def find_slow_rank(ranks: Sequence[TimeTotals]) -> SlowRank | None:
    """The rank whose loader holds up all others, if one stands out.

    >>> find_slow_rank([TimeTotals(wall_s=10, starved_s=wait_s) for wait_s in (0, 4, 0, 1)])
    SlowRank(rank=1, fraction=0.4, median=0.0)
    """
    wall_s = max([1e-9, *(rank.wall_s for rank in ranks)])
    waits = [rank.starved_s / wall_s for rank in ranks]
    largest, median = max(waits), statistics.median_low(waits)
    if largest - median <= IMBALANCE:
        return None
    return SlowRank(waits.index(largest), largest, median)


def find_steady_slow_rank(spans: Sequence[Sequence[TimeTotals]]) -> SlowRank | None:
    """The rank whose loader holds up all others in each of these time spans.

    Noise makes one rank or another the slowest of a span. The figures are those of the first span,
    which needs `ENOUGH_STEPS`.
    """
    found = [find_slow_rank(ranks) for ranks in spans]
    first = found[0]
    named = {slow and slow.rank for slow in found}
    return first if len(named) == 1 and spans[0][0].batches >= ENOUGH_STEPS else None


# --- what is lost while a device waits for data ---------------------------------------------------
#
# On a CPU all waiting is lost. The trainer's thread runs ahead of a CUDA device, so while it waits
# for a batch, the device may still be at work. An event behind the last kernel of a step shows it:
# if the event has been reached when the next batch comes, the device ran dry during the wait, and
# the whole wait counts as lost; if not, nothing was lost. The sum is an upper bound, because a
# device that ran dry just before the batch came counts as idle for the whole wait. Events are
# queried, never waited for.


class HostClock:
    """The clock for a CPU, which does the work itself: all waiting is lost, and figures are exact.

    For devices other than CUDA the figures are an upper bound.

    Attributes:
        starved_s: Seconds of waiting that count as lost.
    """

    def __init__(self) -> None:
        self.starved_s = 0.0

    def batch_came(self, waited_s: float) -> None:
        """Count the wait."""
        self.starved_s += waited_s

    def step_ended(self) -> None:
        """Do nothing, because nothing is queued."""


class DeviceClock(HostClock):
    """The clock for a CUDA device: a wait is lost only if the device had ended its work.

    Args:
        event: A `torch.cuda.Event`, or what behaves like one.
    """

    def __init__(self, event: Any) -> None:
        super().__init__()
        self._step_end, self._has_step_ended = event, False

    def batch_came(self, waited_s: float) -> None:
        """Count the wait if the device has ended its step."""
        if self._has_step_ended and self._step_end.query():
            self.starved_s += waited_s

    def step_ended(self) -> None:
        """Put the event behind the step."""
        self._step_end.record()
        self._has_step_ended = True


def make_clock(device: torch.device) -> HostClock:
    """The clock for a rank's device."""
    return DeviceClock(torch.cuda.Event()) if device.type == "cuda" else HostClock()
