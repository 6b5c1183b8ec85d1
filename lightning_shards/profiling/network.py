"""Remote shards in the report: what was fetched for them, and the change that makes it less."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lightning_shards.errors import count_of
from lightning_shards.profiling.rates import TimeTotals
from lightning_shards.readers.source import SourceDescription
from lightning_shards.shards.remote.fetching.fetch_needs import (
    ReadData,
    connection_rate,
    suitable_run,
)
from lightning_shards.shards.storage.schemes import MakeRemoteStorage

_BUSY: Final = 0.5
"""Share of what all connections could bring from which on their number may be the limit."""

_UNITS: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True, slots=True)
class NetworkContext:
    """How the remote shards of a run are fetched.

    Attributes:
        connections: Requests that a node may have under way.
        sampling: The order's own word.
        data: What is read, and in which pieces; None if there is no cache to keep pieces in.
        cache_bytes: What the cache of the node holds.
        num_nodes: Number of nodes.
    """

    connections: int
    sampling: str
    data: ReadData | None = None
    cache_bytes: int = 0
    num_nodes: int = 1

    @classmethod
    def of(
        cls,
        description: SourceDescription,
        identity: Mapping[str, int | str],
        num_workers: int,
        num_nodes: int,
    ) -> "NetworkContext | None":
        """That of a source; None if its shards are not fetched by the package's own storage.

        Args:
            description: What the source says of itself.
            identity: What it depends on.
            num_workers: Processes or threads of a rank that fetch.
            num_nodes: Number of nodes.
        """
        makers = [*(description.storages or {}).values()]
        maker = next((each for each in makers if isinstance(each, MakeRemoteStorage)), None)
        if maker is None:
            return None
        connections = maker.settings.connections * max(1, num_workers)
        if maker.cache is None or description.index is None or description.index.counts is None:
            return cls(connections, description.sampling, num_nodes=num_nodes)
        need, block = maker.cache.need, int(identity.get("shuffle_block", 1))
        data = ReadData(
            description.index.counts, need.reads_bytes, description.sampling, description.run, block
        )
        return cls(connections, description.sampling, data, need.limit_bytes, num_nodes)


def size_text(size: float) -> str:
    """A number of bytes in the decimal units of networks.

    >>> size_text(12_345_678_901), size_text(999)
    ('12.3 GB', '999 bytes')
    """
    for factor, unit in _UNITS:
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} bytes"


def fetched_text(job: TimeTotals) -> str:
    """What a job has fetched, in one line.

    >>> job = TimeTotals(requests=1930, repeated=4, fetched_bytes=12.3e9, read_bytes=23.6e9)
    >>> fetched_text(job)
    'fetched 12.3 GB in 1,930 requests (4 repeated), 48 % of 23.6 GB came from the cache'
    """
    return (
        f"fetched {size_text(job.fetched_bytes)} in {count_of(round(job.requests), 'request')} "
        f"({job.repeated:,.0f} repeated), {100 * job.cached_fraction:.0f} % of "
        f"{size_text(job.read_bytes)} came from the cache"
    )


def advise_network(totals: TimeTotals, network: NetworkContext) -> str:
    """The change to make where workers wait for the network most of the time.

    Args:
        totals: Of all ranks.
        network: How shards are fetched.
    """
    why = f"the workers wait for the network {totals.stage_shares()['fetch']:.0%} of their time"
    data, rate = network.data, totals.fetched_bytes / max(totals.wall_s, 1e-9)
    if data is None:
        first = "raise" if network.sampling == "sequential" else "give cache_dir room, or raise"
        return (
            f"{first} connections (now {network.connections} a node): {why}, and nothing is "
            "fetched ahead of the batches"
        )
    longer = suitable_run(data)
    if longer is not None:
        return (
            f"set shuffle_run to {longer.run} and shuffle_block to {longer.block} (now {data.run} "
            f"and {data.block}) in a new run: {why}, and a request brings "
            f"{size_text(data.piece_bytes)}, of which most is waiting for the answer"
        )
    connections = network.connections * network.num_nodes
    if rate > _BUSY * connections * connection_rate(data.piece_bytes):
        return (
            f"raise connections (now {network.connections} a node): {why}, and "
            f"{size_text(rate)}/s are about what so many connections can bring"
        )
    if network.cache_bytes < data.size_bytes:
        wanted = -(-data.size_bytes * 9 // (8 * 2**30))
        return (
            f"raise cache_gib to {wanted:,} (now {network.cache_bytes / 2**30:,.3g}), if the disk "
            f"has room: {why}, and the cache does not hold the {size_text(data.size_bytes)} that a "
            "node reads in each epoch"
        )
    return (
        f"let `lightning-shards cache fill` fetch the shards before the fit: {why}; from the "
        "second epoch on all comes from the cache"
    )
