"""From seconds to rates: what the loader could give, what the trainer could take, who is slow.

Ranks are in lockstep: where one is late, all others wait for it inside the backward pass, which
their own clocks take for training. So the sums of a job are the largest of its ranks, not the mean,
and **the rank whose trainer waited longest for its loader is the one that holds all others**.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from operator import add, attrgetter, sub
from typing import Literal, TypeAlias

from lightning_shards.samples.stage_clock import STAGES

IMBALANCE = 0.05
"""Share of the time that one rank must cost all others before it is named."""

BALANCED = 1.1
"""Loader and trainer count as equally fast when neither could do so many times the other's rate."""

_WHOLE = 100
"""Rates from here on are shown without decimals."""

Side: TypeAlias = Literal["loader-bound", "trainer-bound", "balanced"]


def rate_text(rate: float) -> str:
    """A rate for people: a large language model trains on less than one sample in a second.

    >>> rate_text(12_345.6), rate_text(0.517)
    ('12,346', '0.517')
    """
    return f"{rate:,.0f}" if rate >= _WHOLE else f"{rate:.3g}"


@dataclass(frozen=True, slots=True)
class TimeTotals:
    """Sums over some steps of one rank.

    Attributes:
        batches: steps.
        samples: samples trained.
        wall_s: seconds that it took, without validation and without the start of workers.
        wait_s: seconds of these that the trainer waited inside the loader's `next()`.
        starved_s: seconds of waiting that the device is taken to have lost; all of `wait_s` but on
            CUDA, where the device may have had work queued.
        produce_s: seconds that workers spent on these samples, summed over workers.
        forward_s: seconds between a batch's arrival and its backward pass; 0 where there is one
            rank and nothing to compare.
        transfer_s: seconds between the loader's handing out of batches and their arrival at the
            step: moved to the device, and through `device_transforms`.
        open_s: of `produce_s`, opening shards and finding members.
        read_s: of `produce_s`, reading or fetching bytes.
        decode_s: of `produce_s`, decoding them.
        transform_s: of `produce_s`, transforms.
        collate_s: of `produce_s`, making batches.
    """

    batches: float = 0.0
    samples: float = 0.0
    wall_s: float = 0.0
    wait_s: float = 0.0
    starved_s: float = 0.0
    produce_s: float = 0.0
    forward_s: float = 0.0
    transfer_s: float = 0.0
    open_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0

    def stage_shares(self) -> dict[str, float]:
        """Each stage's share of the time of the workers, 0 to 1; `other` is what is left.

        Empty where no stage was measured.
        """
        spent = {stage: getattr(self, f"{stage}_s") for stage in STAGES}
        if not any(spent.values()):
            return {}
        spent["other"] = max(self.produce_s - sum(spent.values()), 0.0)
        return {stage: seconds / sum(spent.values()) for stage, seconds in spent.items()}

    def since(self, earlier: "TimeTotals") -> "TimeTotals":
        """What was added since an earlier measurement."""
        return TimeTotals(*map(sub, _sums(self), _sums(earlier)))

    def plus(self, later: "TimeTotals") -> "TimeTotals":
        """Both together."""
        return TimeTotals(*map(add, _sums(self), _sums(later)))


# as `astuple`, which copies each number and takes ten times as long: a log in a fit asks twice
_sums: Callable[[TimeTotals], tuple[float, ...]] = attrgetter(
    *(each.name for each in fields(TimeTotals))
)


def in_lockstep(ranks: Sequence[TimeTotals]) -> TimeTotals:
    """What sets the pace of ranks in lockstep: the mean samples, and the largest of all seconds."""
    largest = TimeTotals(*(max(values) for values in zip(*map(_sums, ranks), strict=True)))
    samples = statistics.fmean(rank.samples for rank in ranks)
    return replace(largest, samples=samples)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates of the whole job, in samples per second over all ranks.

    Attributes:
        measured: sums of one rank, or of all in lockstep.
        num_workers: workers of a rank that make batches side by side.
        world_size: number of ranks.
    """

    totals: TimeTotals
    num_workers: int
    world_size: int

    @property
    def trained(self) -> float:
        """What was trained."""
        return self.totals.samples * self.world_size / max(self.totals.wall_s, 1e-9)

    @property
    def loader(self) -> float:
        """What the workers could make, were nobody slower than they are."""
        per_worker = self.totals.samples / max(self.totals.produce_s, 1e-9)
        return per_worker * self.num_workers * self.world_size

    @property
    def trainer(self) -> float:
        """What the trainer could take, did its device never starve."""
        busy_s = self.totals.wall_s - self.totals.starved_s
        return self.totals.samples * self.world_size / max(busy_s, 1e-9)

    @property
    def wait_fraction(self) -> float:
        """Share of the time that the trainer waited for data, 0 to 1."""
        return self.totals.wait_s / max(self.totals.wall_s, 1e-9)

    @property
    def starved_fraction(self) -> float:
        """Share of the time that the device was idle for want of data, 0 to 1."""
        return self.totals.starved_s / max(self.totals.wall_s, 1e-9)

    @property
    def transfer_fraction(self) -> float:
        """Share of the time in which batches were moved to the device, 0 to 1."""
        return self.totals.transfer_s / max(self.totals.wall_s, 1e-9)

    @property
    def headroom(self) -> float:
        """How many times its rate the faster side could do, beside the slower one; at least 1."""
        slower, faster = sorted((self.loader, self.trainer))
        return faster / max(slower, 1e-9) if faster else 1.0

    @property
    def side(self) -> Side:
        """Which side is the slower one."""
        if self.headroom < BALANCED:
            return "balanced"
        return "loader-bound" if self.loader < self.trainer else "trainer-bound"

    def metrics(self, prefix: str = "data/") -> dict[str, float]:
        """The figures under the names that loggers show."""
        return {
            f"{prefix}samples_per_s": self.trained,
            f"{prefix}loader_samples_per_s": self.loader,
            f"{prefix}trainer_samples_per_s": self.trainer,
            f"{prefix}wait_fraction": self.wait_fraction,
            f"{prefix}transfer_fraction": self.transfer_fraction,
        } | {
            f"{prefix}loader_{stage}_fraction": share
            for stage, share in self.totals.stage_shares().items()
        }

    def verdict(self) -> str:
        """One line: which side is slower, by how much, and the figures behind it."""
        if not self.totals.samples:
            return "data throughput: nothing was trained"
        said = {
            "loader-bound": f"the trainer could take {self.headroom:.1f}x what the loader gives",
            "trainer-bound": f"the loader could give {self.headroom:.1f}x what the trainer takes",
            "balanced": "loader and trainer are within 10% of each other",
        }
        return (
            f"data throughput: {self.side}: {said[self.side]} "
            f"(trained {rate_text(self.trained)} samples/s, loader alone {rate_text(self.loader)}, "
            f"trainer alone {rate_text(self.trainer)}, "
            f"waited for data {self.wait_fraction:.1%} of the time)"
        )


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that costs all others more than `IMBALANCE` of the time.

    Attributes:
        rank: its number.
        part: its loader, or the forward pass of its model.
        fraction: share of the time that this part took there, 0 to 1.
        median: the same share at the median rank.
    """

    rank: int
    part: Literal["loader", "forward pass"]
    fraction: float
    median: float

    @property
    def excess(self) -> float:
        """Share of the time that it costs all others."""
        return self.fraction - self.median


def find_slow_rank(ranks: Sequence[TimeTotals]) -> SlowRank | None:
    """The rank that holds all others, if one stands out.

    Its loader is looked at first: where buffers are broadcast before a forward pass, a late rank 0
    makes the forward passes of the others longer.

    >>> find_slow_rank([TimeTotals(wall_s=10, starved_s=wait_s) for wait_s in (0, 4, 0, 1)])
    SlowRank(rank=1, part='loader', fraction=0.4, median=0.0)
    """
    wall_s = max([1e-9, *(rank.wall_s for rank in ranks)])
    waits = [rank.starved_s / wall_s for rank in ranks]
    forwards = [rank.forward_s / wall_s for rank in ranks]
    return _find("loader", waits) or _find("forward pass", forwards)


def _find(part: Literal["loader", "forward pass"], fractions: list[float]) -> SlowRank | None:
    largest, median = max(fractions), statistics.median_low(fractions)
    if largest - median <= IMBALANCE:
        return None
    return SlowRank(fractions.index(largest), part, largest, median)
