"""What one fresh process is asked to do, as JSON between the driver and the child."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.peers.job import Data, Job

BUCKET = "data"
"""The folder of all data sets, as nginx serves it: the bucket of whoever reads by S3."""

FAST, SLOW = "200 MB/s", "20 MB/s"
LINKS = {FAST: 200e6, SLOW: 20e6}
"""Bytes/s of all connections together."""

OURS, DEFAULT, LOCAL = "ours", "ours, default run", "ours, local files"
WEBDATASET, MOSAIC, LITDATA = "webdataset", "MosaicML Streaming", "LitData"
LONG, WEBDATASET_LONG = "ours, long epoch", "webdataset, long epoch"
"""Over the same shards again and again, and ours with blocks of an eighth of them. The first block
of a run has to be there before its batches come at the full rate, and one block is half of a short
epoch or more; that of a user has dozens."""
TIMES = 4
"""How often a long epoch has each shard, by links to the file under other names."""


@dataclass(frozen=True)
class RemoteJob(Job):
    """One run behind the proxy.

    Attributes:
        loaders: Those that are measured, one after the other, in this order.
        links: The names of links, and the data set that is read behind each.
        shaped: The port of the proxy.
        direct: The port of nginx.
        control: The port that the proxy is controlled by.
        sample_bytes: Of the tars, by data set.
        is_long: Whether each shard is read several times; see `long`.
    """

    loaders: list[str] = field(default_factory=list)
    links: dict[str, Data] = field(default_factory=dict)
    shaped: int = 0
    direct: int = 0
    control: int = 0
    sample_bytes: int = 0
    is_long: bool = False

    def behind(self, link: str) -> "RemoteJob":
        """The same with the data set that is read behind this link."""
        return replace(self, data=self.links[link])

    @property
    def local_shards(self) -> list[str]:
        """The tars as files."""
        return super().shards

    @property
    def shards(self) -> list[str]:
        """The tars as URLs."""
        return [self.url_of(path) for path in self.local_shards]

    def url_of(self, path: str) -> str:
        """The URL of a file below the folder of all data sets."""
        return f"http://127.0.0.1:{self.shaped}/{self.key_of(path)}"

    def key_of(self, path: str) -> str:
        """The path of a file on the server, with the bucket."""
        return f"{BUCKET}{path.removeprefix(self.folder)}"

    @property
    def home(self) -> Path:
        """The folder of the data set."""
        home = super().home
        return home.with_name(f"{home.name}-long") if self.is_long else home

    @property
    def long(self) -> "RemoteJob":
        """The same with the data set that has each shard several times."""
        data = self.data
        times = Data(data.name, TIMES * data.samples, TIMES * data.shards)
        return replace(self, data=times, is_long=True)

    @classmethod
    def from_json(cls, text: str) -> "RemoteJob":
        """The job that `to_json` wrote."""
        values = json.loads(text)
        links = {name: Data(**data) for name, data in values["links"].items()}
        return cls(**values | {"data": Data(**values["data"]), "links": links})
