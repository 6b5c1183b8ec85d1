"""The choice of a batch between pieces that are on their way and fetching what it lacks exactly.

What is fetched exactly is fetched once more with its piece. Where batches are used faster than the
network brings them, those bytes are lost: everything waits for the network, and a batch that waits
for its pieces costs nothing that would not be waited for later. Where the network is faster, an
exact request keeps whoever uses the batches from waiting, and it has bytes to spare. The pieces of
very small ranges are always waited for, because a request costs more than their bytes.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

from lightning_shards.shards.remote.fetching.link_speed import LinkSpeed
from lightning_shards.shards.remote.fetching.segments import Segment, bytes_of_segments

LONGEST_S: Final = 60.0
"""A batch waits no longer, so that a slow network does not look like one that hangs."""

_LEAST_S: Final = 0.5
_TIMES_AS_LONG: Final = 2
"""A piece is given up that takes so much longer than it should."""

_TIMES_FASTER: Final = 2.0
_SMALL: Final = 16 << 10
_REMEMBERED: Final = 15
_INSTANT_S: Final = 1e-6


class Patience:
    """Compares how fast batches are used with how fast they come; called by who reads them.

    Args:
        link: Measures the requests of this process.
    """

    def __init__(self, link: LinkSpeed) -> None:
        self._link = link
        self._used_per_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._was_read: float | None = None

    def asked(self, size: int, now: float) -> None:
        """A batch of so many bytes is asked for: the one before it has been used."""
        if self._was_read is not None:
            self._used_per_s.append(size / max(now - self._was_read, _INSTANT_S))

    def read(self, now: float) -> None:
        """It was read."""
        self._was_read = now

    def is_worth_it(self, missing: Sequence[Segment]) -> bool:
        """Whether the pieces of these are to be waited for."""
        if not missing or self._was_read is None:
            return False  # a first batch never waits
        if bytes_of_segments(missing) < _SMALL * len(missing):
            return True
        rate, used = self._link.bytes_per_s, tuple(self._used_per_s)
        return rate is not None and bool(used) and median(used) > _TIMES_FASTER * rate

    def seconds_for(self, missing: Sequence[Segment]) -> float:
        """A batch waits on as long as some piece of it comes in so many seconds."""
        largest = max((each.piece.size for each in missing if each.piece), default=0)
        return _LEAST_S + _TIMES_AS_LONG * self._link.seconds_of(largest)
