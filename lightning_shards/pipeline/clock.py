"""Where a worker's time goes: seconds by stage, carried with each batch."""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

STAGES = ("open", "read", "decode", "transform", "collate")
"""Opening shards and finding members; reading (or fetching) bytes; decoding them, of fields without
a transform right into a batch; transforms that do not decode themselves; making batches of the
rest. What is left of the time is bookkeeping, and the user's own stages of a stream."""


class StageClock:
    """Adds up the seconds of one worker; two readings of the clock cost a tenth of a microsecond.

    Attributes:
        seconds: by stage, since the last `take`.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def on(self, stage: str) -> Generator[None]:
        """Count what is done inside as this stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - begin

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
        self.seconds = dict.fromkeys(STAGES, 0.0)
        return taken
