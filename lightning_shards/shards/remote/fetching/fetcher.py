"""The fetcher: pieces that are needed soon, and exactly the bytes that a batch lacks.

Pieces that were announced are fetched by a few threads, in the order given, and go to the cache of
the node, where every process finds them. A batch reads from pieces what is there. It waits for
those that are on their way, but not for long: what it still lacks then is fetched by requests for
these bytes alone, so a process that lags or ends delays no other one by more than that.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial

from lightning_shards.shards.remote.cache.piece_cache import PieceCache
from lightning_shards.shards.remote.cache.piece_names import Piece
from lightning_shards.shards.remote.fetching.process_fetcher import (
    WAIT_S,
    FetchCounts,
    ProcessFetcher,
)
from lightning_shards.shards.remote.fetching.segments import ObjectReads
from lightning_shards.shards.remote.transport import Transport


class Fetcher:
    """Reads remote objects by way of the cache; any thread may call any method.

    Threads are started when there is something to fetch, once more in a process that is forked, and
    a pickled fetcher is what it was made of. Transport and cache are closed with it, so no other
    one may have the same transport.

    Args:
        transport: What fetches; at least `threads` + 1 of its requests may be under way.
        cache: Where pieces are kept.
        threads: Requests at once, each of 8 MiB at most, beside that of a thread that reads.
        wait_s: Seconds for which a batch waits for pieces that are on their way.
    """

    def __init__(
        self,
        transport: Transport,
        cache: PieceCache,
        *,
        threads: int,
        wait_s: float = WAIT_S,
    ) -> None:
        self._transport, self._cache = transport, cache
        self._threads, self._wait_s = threads, wait_s
        self._made: dict[int, ProcessFetcher] = {}

    def __reduce__(self) -> tuple[Callable[..., "Fetcher"], tuple[object, ...]]:
        """Pickle what it was made of."""
        settings = {"threads": self._threads, "wait_s": self._wait_s}
        return partial(Fetcher, **settings), (self._transport, self._cache)

    @property
    def counts(self) -> FetchCounts:
        """What this process read and fetched since the fetcher was first used or last closed."""
        return self._here().counts

    def fetch_ahead(self, pieces: Sequence[Piece]) -> None:
        """Fetch these pieces ahead, in this order, and no others that were announced before.

        It begins when all requests of the first batch have been made. Pieces that are there cost
        next to nothing, and one that another process fetches at the moment is left to it as long
        as it runs. Errors are not raised: whoever reads the bytes gets them.

        Args:
            pieces: What the node needs of this block and the next, with what this process is to
                fetch before what others are to fetch.
        """
        self._here().fetch_ahead(pieces)

    def has_all(self) -> bool:
        """Whether pieces were announced, and all that were announced last are in the cache."""
        return self._here().has_all()

    def read(self, reads: Sequence[ObjectReads]) -> list[list[int]]:
        """Read all ranges of a batch at once; nothing is written to their memory after the call.

        Returns:
            For each object and each of its ranges, how many bytes there are: fewer than asked for
            where the object ends.

        Raises:
            ShardError: As of `Transport.read`.
            FileAccessError: The cache folder is another user's, or others may write to it.
        """
        return self._here().read(reads)

    def close(self) -> None:
        """End what this process fetches. Reads in other threads end with a StorageError.

        A later call begins again.
        """
        here = self._made.pop(os.getpid(), None)
        if here is not None:
            here.close()

    def _here(self) -> "ProcessFetcher":
        """What this process has; `setdefault` needs no lock, which a fork could inherit held."""
        pid = os.getpid()
        here = self._made.get(pid)
        if here is None:
            made = ProcessFetcher(self._transport, self._cache, self._threads, self._wait_s)
            here = self._made.setdefault(pid, made)
            if here is made:
                weakref.finalize(self, _stop_in, pid, here).atexit = False
        return here


def _stop_in(pid: int, here: "ProcessFetcher") -> None:
    """Stop it where it was made: in a fork, its locks may be held for ever."""
    if os.getpid() == pid:
        here.stop()
