"""The protocol of storage: where the bytes of shards are, and how they are read.

`schemes` says which storage reads the URLs of which scheme; readers ask this protocol and nothing
else, so they do not know where a shard lies. What a process has fetched from afar is told in
numbers that travel with its batches.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import add, sub
from typing import Any, NamedTuple, Protocol

from lightning_shards.errors import FileAccessError, ShardError, ShardNotFoundError


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

_NO_MEMORY = memoryview(b"")


class ShardStat(NamedTuple):
    """By what an unchanged shard is recognised.

    Attributes:
        size: Bytes of the shard.
        version: An int of at most 63 bits that is another one when the bytes are others: the time
            of change of a file, or a hash of what a store says of its object.
    """

    size: int
    version: int


class ShardReads(NamedTuple):
    """Ranges of bytes of one shard.

    Attributes:
        url: The shard.
        starts: Offset of the first byte of each range, ascending.
        stops: Offset behind its last byte.
        stat: What the shard must be; None if the caller checks the bytes by their crc32.
        into: Writable memory for the ranges, one after the other; of no use to `prefetch`.
    """

    url: str
    starts: Sequence[int]
    stops: Sequence[int]
    stat: tuple[int, int] | None = None
    into: memoryview = _NO_MEMORY


class Storage(Protocol):
    """Reads shards. One object serves one reader.

    A source makes its storage in the process that reads, by a callable that it has pickled.

    Attributes:
        coalesced_gap: Bytes between two ranges that cost less to read with them than a read of its
            own: latency times bandwidth.
        largest_read: Bytes of a coalesced range at most, unless one member has more.
        largest_ahead: Mean bytes of a field's members up to which several batches are read
            together. Where they are larger, each batch is read alone, which a storage should want
            only if a read costs next to nothing.
        is_remote: Whether a request takes so long that shards are not scanned: their member tables
            lie beside them. A kept table is believed until a read finds another version, so each
            read must be told what the shard is, and compares it at no cost.
        fetches_ahead: Whether `prefetch` brings ranges to a cache.
    """

    is_remote: bool = False
    fetches_ahead: bool = False
    coalesced_gap: int = 1 << 20
    largest_read: int = 8 << 20
    largest_ahead: int = 1 << 62

    @abstractmethod
    def stat(self, url: str) -> ShardStat:
        """What the shard is, asked anew at each call.

        Raises:
            ShardNotFoundError: There is no such shard.
            FileAccessError: This process may not or cannot read it.
        """
        ...

    @abstractmethod
    def read(self, url: str, start: int, stop: int, stat: tuple[int, int] | None = None) -> bytes:
        """One range, which may be empty.

        Returns:
            Fewer bytes than asked for if the shard ends before, and none if it is not what `stat`
            says. Without `stat` the caller checks the bytes by their crc32.

        Raises:
            ShardError: As of `stat`.
            OSError: The bytes cannot be read.
        """
        ...

    @abstractmethod
    def open_stream(self, url: str) -> AbstractContextManager[Any]:
        """The whole shard as a file, open for reading from its start; errors as of `stat`."""
        ...

    def read_ranges(self, reads: Sequence[ShardReads]) -> list[list[int]]:
        """Read all ranges of one batch or more, over any number of shards; they may overlap.

        Nothing is written to their memory after the call.

        Returns:
            For each shard and each of its ranges, how many bytes were read: fewer than asked for
            where the shard ends or cannot be read (`read` tells why), and -1 if it is not what
            `stat` of its reads says.

        Raises:
            ShardError: As of `stat`.
        """
        return [self._read_ranges(shard_reads) for shard_reads in reads]

    def read_beside(
        self, urls: Sequence[str], max_bytes: int, shards: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[ShardStat]]:
        """Small files that lie beside shards, and what shards are now, asked at once.

        Returns:
            Of each file the first bytes, `max_bytes` at most, or None if it does not exist or this
            process may not read it; and the stat of each shard.

        Raises:
            ShardError: As of `stat` for the shards, or the store does not answer.
        """
        return [self._whole(url, max_bytes) for url in urls], list(map(self.stat, shards))

    def prefetch(self, reads: Sequence[ShardReads]) -> bool:
        """Begin to fetch these ranges, in this order, and nothing that was named so before.

        Of remote shards all processes of a node name the same ranges, each with its own share of
        them first, so that each range is fetched once. Nothing here is urgent, and errors are not
        raised: whoever reads the bytes gets them.

        Returns:
            Whether all of these ranges are there already, so that no read of them waits.
        """
        return False

    def fetch_totals(self) -> FetchTotals:
        """What this process has fetched from afar so far, and how long its batches waited."""
        return NO_FETCHES

    def close(self, url: str) -> None:
        """Let go of what is held for this shard; it may be asked for again."""

    def close_all(self) -> None:
        """Let go of what is held for all shards together, such as connections and threads."""

    def _whole(self, url: str, max_bytes: int) -> bytes | None:
        try:
            return self.read(url, 0, max_bytes)
        except (ShardNotFoundError, FileAccessError):
            return None
        finally:
            self.close(url)

    def _read_ranges(self, reads: ShardReads) -> list[int]:
        begin, sizes = 0, list[int]()
        for start, stop in zip(reads.starts, reads.stops, strict=True):
            try:
                data = self.read(reads.url, start, stop)
            except OSError as error:
                if isinstance(error, ShardError):
                    raise
                data = b""
            reads.into[begin : begin + len(data)] = data
            begin += stop - start
            sizes.append(len(data))
        is_unchanged = reads.stat is None or self.stat(reads.url) == reads.stat
        return sizes if is_unchanged else [-1] * len(sizes)


def shard_stat(url: str, storage: Storage) -> ShardStat:
    """Size and version of what is at this URL now; it is not held open.

    Raises:
        ShardNotFoundError: There is no such shard.
        FileAccessError: This process may not or cannot read it.
    """
    try:
        return storage.stat(url)
    finally:
        storage.close(url)


MakeStorage = Callable[[], Storage]
"""Makes a storage in the process that reads; it is pickled."""
