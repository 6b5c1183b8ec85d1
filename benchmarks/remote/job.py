"""What one fresh process is asked to do behind the proxy."""

from dataclasses import dataclass, replace

from benchmarks.peers.job import Job

BUCKET = "data"
"""The folder of all data sets, as nginx serves it, and the bucket of those that read by S3."""

FAST, SLOW = "200 MB/s", "20 MB/s"
LINKS = {FAST: 200e6, SLOW: 20e6}
"""Bytes/s of all connections together."""

OURS, WEBDATASET, MOSAIC, LITDATA = "ours", "webdataset", "MosaicML Streaming", "LitData"
LONG, WEBDATASET_LONG = "ours, long epoch", "webdataset, long epoch"
"""Over the same shards again and again, and ours with blocks of an eighth of them. The first block
of a run has to be there before its batches come at the full rate, and one block is half of a short
epoch or more; that of a user has dozens."""
TIMES = 4
"""How often a long epoch has each shard, by other URLs of the same file."""


@dataclass(frozen=True)
class RemoteJob(Job):
    """One run behind the proxy.

    Attributes:
        link: The name of its speed.
        shaped: The port of the proxy.
        control: The port that the proxy is controlled by.
        sample_bytes: Of the tars.
        times: How often each shard is read.
    """

    link: str = FAST
    shaped: int = 0
    control: int = 0
    sample_bytes: int = 0
    times: int = 1

    @property
    def local_shards(self) -> list[str]:
        """The tars as files."""
        return super().shards

    @property
    def shards(self) -> list[str]:
        """The tars as URLs."""
        host = f"http://127.0.0.1:{self.shaped}"
        keys = [self.key_of(path) for path in self.local_shards]
        return [f"{host}/copy{number}/{key}" for number in range(self.times) for key in keys]

    def key_of(self, path: str) -> str:
        """The path of a file on the server, with the bucket."""
        return f"{BUCKET}{path.removeprefix(self.folder)}"

    @property
    def long(self) -> "RemoteJob":
        """The same with each shard several times, and as much longer."""
        return replace(self, times=TIMES, seconds=TIMES * self.seconds)
