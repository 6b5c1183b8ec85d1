"""Who is compared, by which rows of the table, and what pip installs for it."""

from typing import NamedTuple

ALL = ("IMG", "SMALL", "TOK")
ARRAYS = ("SMALL", "TOK")
REFERENCE = "webdataset"


class Row(NamedTuple):
    """One loader on some data sets.

    Attributes:
        loader: its name in the module of its peer.
        workers: processes or threads.
        data: the data sets that it is run on.
    """

    loader: str
    workers: int = 2
    data: tuple[str, ...] = ALL

    @property
    def name(self) -> str:
        """As in the tables."""
        return self.loader if self.workers else f"{self.loader}, 0 workers"


class Peer(NamedTuple):
    """One package.

    Attributes:
        module: in `loaders`.
        rows: what is measured of it.
        package: what pip installs; nothing for what comes with ours.
        resumed: the loaders whose start in the middle of an epoch is measured.
    """

    module: str
    rows: tuple[Row, ...]
    package: str = ""
    resumed: tuple[str, ...] = ()


_WEBDATASET = (
    Row("webdataset"),
    Row("webdataset, own decoders"),
    Row("webdataset, recipe"),
    Row("webdataset", 0, ARRAYS),
)
_OURS = (
    Row("ours, processes"),
    Row("ours, threads"),
    Row("ours, inline"),
    Row("ours, processes, first run"),
    Row("ours, stream"),
    Row("ours, threads, own crop", data=("IMG",)),
    Row("ours, processes, crc32", data=ARRAYS),
    Row("ours, threads, crc32", data=ARRAYS),
    Row("ours, inline, crc32", data=ARRAYS),
)
_LITDATA = (Row("LitData"), Row("LitData", 0, ARRAYS))
_MOSAIC, _ENERGON, _WIDS = Row("MosaicML Streaming"), Row("Megatron-Energon"), Row("wids")

PEERS = {
    "webdataset": Peer("webdataset_tars", _WEBDATASET, resumed=("webdataset",)),
    "files": Peer("torch_files", (Row("torch DataLoader, files", data=("IMG",)),)),
    "litdata": Peer("litdata_chunks", _LITDATA, "litdata", ("LitData",)),
    "mosaic": Peer("mosaic_shards", (_MOSAIC,), "mosaicml-streaming", (_MOSAIC.loader,)),
    "energon": Peer("energon_tars", (_ENERGON,), "megatron-energon", (_ENERGON.loader,)),
    "wids": Peer("wids_tars", (_WIDS,), "wids", (_WIDS.loader,)),
    "ours": Peer("shards", _OURS, resumed=("ours, processes", "ours, threads")),
}
