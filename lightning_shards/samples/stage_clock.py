"""Where a worker's time goes: seconds by stage, carried with each batch."""

import time
from collections.abc import Iterator
from typing import Any

STAGES = ("open", "read", "decode", "transform", "collate")
"""Opening shards and finding members; reading (or fetching) bytes; checking and decoding them, of
fields without a transform right into a batch; transforms that do not decode themselves; making
batches of the rest. What is left is bookkeeping, and the user's own stages of a stream."""

_NUMBERS = {stage: number for number, stage in enumerate(STAGES, 1)}

_published = [memoryview(bytearray(1))]
"""A byte that says which stage began last, for others to see; 0: none so far."""

_NOTHING: dict[str, float] = dict.fromkeys(STAGES, 0.0)


def publish_stages_in(byte: memoryview) -> None:
    """Let the clocks that this process makes from now on say there which stage began last."""
    _published[0] = byte


def stage_of(number: int) -> str:
    """The stage that a published byte means."""
    return ("start", *STAGES)[number]


class _Stage:
    """A part of a worker's time; half a microsecond, where `contextmanager` takes three."""

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
        seconds: by stage, since the last `take`.
    """

    def __init__(self) -> None:
        self.seconds = _NOTHING.copy()
        self._last_begun = _published[0]

    def begin(self, stage: str) -> float:
        """Say that this stage begins; the time now, on `time.perf_counter`."""
        self._last_begun[0] = _NUMBERS[stage]
        return time.perf_counter()

    def on(self, stage: str) -> _Stage:
        """Count what is done inside as this stage."""
        return _Stage(self, stage)

    def lap(self, stage: str, begin: float, following: str) -> float:
        """Count the time since `begin` as this stage, and begin the following; the time now.

        It costs a third of `on`, where a batch is made in a few steps.
        """
        now = self.begin(following)
        self.seconds[stage] += now - begin
        return now

    def each(self, items: Iterator[Any], stage: str) -> Iterator[Any]:
        """The items; the time that they take to come counts as this stage."""
        while True:
            with self.on(stage):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def take(self) -> tuple[float, ...]:
        """The seconds since the last call, in the order of `STAGES`."""
        taken = tuple(self.seconds.values())
        self.seconds = _NOTHING.copy()
        return taken
