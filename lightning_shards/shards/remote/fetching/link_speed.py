"""How long a store takes to answer and how fast its bytes then come, as one process sees it."""

from collections import deque
from statistics import median
from typing import Final

from lightning_shards.shards.remote.byte_ranges import worthwhile_gap

_LATENCY_S: Final = 0.03
_BYTES_PER_S: Final = 5e6
_GAP: Final = 1 << 16
"""Used until something was measured: little, since many requests begin at once and share a link. To
read a gap too many costs bytes that all others wait for, as those of a first batch do."""

_REMEMBERED: Final = 15
_SMALL: Final = 1 << 18


class LinkSpeed:
    """Measures requests; any thread may call any method.

    Small requests tell the latency: the least one, since the others have waited for the bytes of
    larger ones. Large requests tell the speed of a connection beside all others: the median, since
    a request that was repeated took as long as its pauses.
    """

    def __init__(self) -> None:
        self._latencies_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._speeds: deque[float] = deque(maxlen=_REMEMBERED)
        self._rates: deque[float] = deque(maxlen=_REMEMBERED)
        self._piece_rates: deque[float] = deque(maxlen=_REMEMBERED)

    def count(self, size: int, seconds: float, at_once: int = 1, *, is_piece: bool = False) -> None:
        """Learn from a request for so many bytes that took so long, one of so many at once."""
        self._rates.append(at_once * size / max(seconds, 1e-9))
        if is_piece:
            self._piece_rates.append(self._rates[-1])
        if size <= _SMALL:
            self._latencies_s.append(max(0.0, seconds - size / self._speed))
        else:
            # Where the latency is known badly, at least a part of the time was for the bytes.
            self._speeds.append(size / max(seconds - self.latency_s, seconds / 4, 1e-9))

    def seconds_of(self, size: int) -> float:
        """How long a request for so many bytes takes."""
        return self.latency_s + size / self._speed

    @property
    def bytes_per_s(self) -> float | None:
        """What all requests of the process at once bring; None before there was one."""
        return median(tuple(self._rates)) if self._rates else None

    @property
    def pieces_bytes_per_s(self) -> float:
        """The same of pieces; batches fetch members, which wait for the first byte most of all."""
        return median(tuple(self._piece_rates) or [0.0])

    @property
    def gap(self) -> int:
        """Bytes between two ranges that are read with them rather than by another request."""
        return worthwhile_gap(self.latency_s, self._speed) if self._speeds else _GAP

    @property
    def latency_s(self) -> float:
        """How long a request without a byte takes."""
        return min(tuple(self._latencies_s), default=_LATENCY_S)

    @property
    def _speed(self) -> float:
        return median(tuple(self._speeds) or [_BYTES_PER_S])
