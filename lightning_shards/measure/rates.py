"""Rates of loader and trainer, and the rank that holds up the others.

Ranks are in lockstep: if one is late, all others wait for it inside the backward pass, which their
own clocks count as training. So the times of a job are the largest of its ranks and not the mean,
and **the rank whose trainer waited longest for its loader is the one that holds up all others**.
"""

import statistics
from collections.abc import Sequence
from operator import sub
from typing import Literal, NamedTuple

from lightning_shards.samples.stage_clock import STAGES

IMBALANCE = 0.05
"""Share of the time that one rank must cost all others before it is named."""

BALANCED = 1.1
"""Loader and trainer count as equally fast if neither could do this many times the other's rate."""

ENOUGH_STEPS = 20
"""Steps below which a verdict is unsure."""

_WHOLE = 100
"""Rates of at least this many are shown without decimals."""


def rate_text(rate: float) -> str:
    """A rate as text; below one sample a second, as of large language models, with decimals.

    >>> rate_text(12_345.6), rate_text(0.517)
    ('12,346', '0.517')
    """
    return f"{rate:,.0f}" if rate >= _WHOLE else f"{rate:.3g}"


class TimeTotals(NamedTuple):
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
        return TimeTotals(*map(sub, self, earlier))


_SUMMED = TimeTotals._fields[TimeTotals._fields.index("requests") :]
"""Totals of which a job has as much as its ranks together."""


def in_lockstep(ranks: Sequence[TimeTotals]) -> TimeTotals:
    """The totals of ranks in lockstep: the mean of samples, and the largest of each time.

    What was fetched is the sum of all ranks.
    """
    largest = TimeTotals(*map(max, zip(*ranks, strict=True)))
    samples = statistics.fmean(rank.samples for rank in ranks)
    sums = {name: sum(getattr(rank, name) for rank in ranks) for name in _SUMMED}
    return largest._replace(samples=samples, **sums)


class RunContext(NamedTuple):
    """The workers, the machine and the device of a run, which the figures do not show.

    Attributes:
        num_workers: Workers of a rank, with each thread of a process; 0 for the trainer's own
            thread.
        cores: Processor cores of a machine for each of its ranks, at least 1.
        world_size: Number of ranks.
        device: Type of the device, such as `cpu` or `cuda`.
        threads_per_worker: Workers for each one of the setting `num_workers`.
    """

    num_workers: int
    cores: int
    world_size: int
    device: str
    threads_per_worker: int = 1


class Throughput(NamedTuple):
    """Rates of the whole job, in samples per second over all ranks.

    Attributes:
        totals: Totals of one rank, or of all ranks in lockstep.
        context: The workers, the machine and the device.
    """

    totals: TimeTotals
    context: RunContext

    @property
    def trained(self) -> float:
        """The rate of training."""
        return self._in(self.totals.wall_s)

    @property
    def loader(self) -> float:
        """The rate that the workers could reach if they never had to wait."""
        return self._in(self.totals.produce_s / max(1, self.context.num_workers))

    @property
    def trainer(self) -> float:
        """The rate that the trainer could reach if its device never starved."""
        return self._in(self.totals.wall_s - self.totals.starved_s)

    def _in(self, seconds: float) -> float:
        """The rate if the samples of all ranks took so long."""
        return self.totals.samples * self.context.world_size / max(seconds, 1e-9)

    def fraction(self, of: Literal["wait", "starved", "transfer"]) -> float:
        """Share of the time, 0 to 1.

        Args:
            of: `wait`: the trainer waited for data; `starved`: the device was idle because data was
                missing; `transfer`: batches were moved to the device.
        """
        seconds: float = getattr(self.totals, f"{of}_s")
        return seconds / max(self.totals.wall_s, 1e-9)

    @property
    def headroom(self) -> float:
        """The faster side's possible rate divided by the slower side's; at least 1."""
        slower, faster = sorted((self.loader, self.trainer))
        return faster / max(slower, 1e-9) if faster else 1.0

    @property
    def side(self) -> Literal["loader-bound", "trainer-bound", "balanced"]:
        """The slower side, or the word for loader and trainer being equally fast."""
        if self.headroom < BALANCED:
            return "balanced"
        return "loader-bound" if self.loader < self.trainer else "trainer-bound"

    def metrics(self, prefix: str = "data/") -> dict[str, float]:
        """The figures by the names under which loggers show them.

        What was fetched is of all ranks in the totals.
        """
        totals, wall_s = self.totals, max(self.totals.wall_s, 1e-9)
        metrics = {
            "samples_per_s": self.trained,
            "loader_samples_per_s": self.loader,
            "trainer_samples_per_s": self.trainer,
            "wait_fraction": self.fraction("wait"),
            "transfer_fraction": self.fraction("transfer"),
        }
        if self.context.device == "cuda":
            metrics["starved_fraction"] = self.fraction("starved")
        for stage, share in totals.stage_shares().items():
            metrics[f"loader_{stage}_fraction"] = share
        if totals.is_fetched:
            metrics |= {
                "fetched_bytes_per_s": totals.fetched_bytes / wall_s,
                "requests_per_s": totals.requests / wall_s,
                "repeated_requests": totals.repeated,
                "cached_fraction": totals.cached_fraction,
            }
        return {prefix + name: value for name, value in metrics.items()}


def find_slow_rank(ranks: Sequence[TimeTotals]) -> int | None:
    """The rank whose loader holds up all others, if one stands out after `ENOUGH_STEPS`.

    It costs them more than `IMBALANCE` of the time, and waits more than twice as long as the median
    rank.

    >>> waits = (0, 4, 0, 1)
    >>> find_slow_rank([TimeTotals(20, wall_s=10, starved_s=wait_s) for wait_s in waits])
    1
    """
    waits = [rank.starved_s for rank in ranks]
    largest, median = max(waits), statistics.median_low(waits)
    cost = IMBALANCE * max(rank.wall_s for rank in ranks)
    if largest - median <= max(cost, median) or ranks[0].batches < ENOUGH_STEPS:
        return None
    return waits.index(largest)
