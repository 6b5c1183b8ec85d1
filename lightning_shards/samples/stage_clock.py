"""The stage clock of a worker: seconds by stage, which travel with each batch, and their sums."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lightning_shards.shards.storage.protocol import NO_FETCHES, FetchTotals
from lightning_shards.system.process import published_byte

STAGES = ("open", "read", "decode", "transform", "collate", "fetch")
"""Opening shards and finding members; reading bytes; checking and decoding them (fields without a
transform are decoded right into a batch); transforms that do not decode; collating the other
fields; waiting for bytes of remote shards. The rest is bookkeeping, and the user's own stages of a
stream. Batches of local shards have no time of the last stage."""

_NUMBERS = {stage: number for number, stage in enumerate(STAGES, 1)}

_NOTHING: dict[str, float] = dict.fromkeys(STAGES[:-1], 0.0)


def stage_of(number: int) -> str:
    """The name of the stage that a published byte stands for."""
    return ("start", *STAGES)[number]


class _Stage:
    """Times one stage; it costs half a microsecond, where `contextmanager` costs three."""

    __slots__ = ("_begin", "_clock", "_name")

    def __init__(self, clock: "StageClock", name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._begin = self._clock.begin(self._name)

    def __exit__(self, *exception: object) -> None:
        self._clock.seconds[self._name] += time.perf_counter() - self._begin


class StageClock:
    """Adds up the seconds of one worker.

    Attributes:
        seconds: Seconds by stage since the last `take`.
    """

    def __init__(self) -> None:
        self.seconds = _NOTHING.copy()
        self._last_begun = published_byte()

    def begin(self, stage: str) -> float:
        """Publish that this stage begins, and return the time on `time.perf_counter`."""
        self._last_begun[0] = _NUMBERS[stage]
        return time.perf_counter()

    def on(self, stage: str) -> _Stage:
        """A context whose time counts as this stage."""
        return _Stage(self, stage)

    def lap(self, stage: str, begin: float, following: str) -> float:
        """Count the time since `begin` as this stage, begin the following, and return the time.

        It costs a third of `on`, and serves where a batch is made in a few steps.
        """
        now = self.begin(following)
        self.seconds[stage] += now - begin
        return now

    def each(self, items: Iterator[Any], stage: str) -> Iterator[Any]:
        """The items; the time until each of them comes counts as this stage."""
        while True:
            with self.on(stage):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def take(self) -> tuple[float, ...]:
        """The seconds since the last call, in the order of `STAGES`, without the last stage."""
        taken = tuple(self.seconds.values())
        self.seconds = _NOTHING.copy()
        return taken


@dataclass
class LoaderTimes:
    """Times that the loader has measured since it was made; throughput is computed from them.

    Attributes:
        batches: Batches handed out.
        samples: Samples of this rank in these batches.
        wait_s: Seconds that `next()` took, without the first batch of each stream.
        produce_s: Seconds that the workers spent on these batches, summed over workers.
        start_s: Seconds until the first batch of each stream, while workers start and buffers fill.
        stages: Seconds of `produce_s` by stage (`STAGES`); the rest is bookkeeping.
        handed_at: Value of `time.perf_counter()` when the last batch was handed out.
        fetched: What the workers fetched from afar for these batches.
    """

    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    produce_s: float = 0.0
    start_s: float = 0.0
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    handed_at: float = 0.0
    fetched: FetchTotals = NO_FETCHES
