"""What a process has fetched from afar, in numbers that travel with its batches."""

from operator import add, sub
from typing import NamedTuple


class FetchTotals(NamedTuple):
    """Sums over some time of one process or more.

    Attributes:
        requests: Requests that were made, repeated ones included.
        repeated: Requests that were made because one before them had failed.
        fetched_bytes: Bytes that the requests brought: members, pieces and member tables.
        read_bytes: Bytes that batches read, wherever they came from.
        table_wait_s: Seconds that batches waited for member tables.
        member_wait_s: Seconds that batches waited for members.
    """

    requests: float = 0
    repeated: float = 0
    fetched_bytes: float = 0
    read_bytes: float = 0
    table_wait_s: float = 0.0
    member_wait_s: float = 0.0

    def plus(self, other: "FetchTotals") -> "FetchTotals":
        """Both together."""
        return FetchTotals(*map(add, self, other))

    def since(self, earlier: "FetchTotals") -> "FetchTotals":
        """The difference to earlier totals."""
        return FetchTotals(*map(sub, self, earlier))

    @property
    def wait_s(self) -> float:
        """Seconds that batches waited for bytes from afar."""
        return self.table_wait_s + self.member_wait_s


NO_FETCHES = FetchTotals()
"""Of a storage whose shards are at hand."""
