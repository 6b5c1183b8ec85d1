"""Who is compared, by which rows of the table, and what pip installs for it."""

from dataclasses import dataclass

ALL = ("IMG", "SMALL", "TOK")
ARRAYS = ("SMALL", "TOK")
MIXED = ("IMG", "SMALL")
REFERENCE = "webdataset"


@dataclass(frozen=True)
class Row:
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


@dataclass(frozen=True)
class Peer:
    """One package.

    Attributes:
        name: for `--peers`.
        module: in `loaders`.
        rows: what is measured of it.
        packages: what pip installs; nothing for what comes with ours.
        resumed: the loaders whose start in the middle of an epoch is measured.
        converts: whether it makes something of the data set first.
        saves_state: whether a loader continues from a state of its own.
        is_optional: whether it is only run if it is named.
    """

    name: str
    module: str
    rows: tuple[Row, ...]
    packages: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    converts: bool = True
    saves_state: bool = False
    is_optional: bool = False


_OPTIONAL = {"converts": False, "is_optional": True}

PEERS = (
    Peer(
        "webdataset",
        "webdataset_tars",
        (
            Row("webdataset"),
            Row("webdataset, own decoders"),
            Row("webdataset, recipe"),
            Row("webdataset", 0, ARRAYS),
        ),
        resumed=("webdataset",),
        converts=False,
    ),
    Peer("files", "torch_files", (Row("torch DataLoader, files", data=("IMG",)),), converts=False),
    Peer(
        "litdata",
        "litdata_chunks",
        (Row("LitData"), Row("LitData", 0, ARRAYS)),
        ("litdata",),
        resumed=("LitData",),
        saves_state=True,
    ),
    Peer(
        "mosaic",
        "mosaic_shards",
        (Row("MosaicML Streaming"),),
        ("mosaicml-streaming",),
        resumed=("MosaicML Streaming",),
        saves_state=True,
    ),
    Peer(
        "energon",
        "energon_tars",
        (Row("Megatron-Energon"),),
        ("megatron-energon",),
        resumed=("Megatron-Energon",),
        saves_state=True,
    ),
    Peer("wids", "wids_tars", (Row("wids"),), ("wids",), resumed=("wids",)),
    Peer("datasets", "huggingface_tars", (Row("HF datasets"),), ("datasets",), **_OPTIONAL),
    Peer("ray", "ray_tars", (Row("Ray Data"),), ("ray[data]",), **_OPTIONAL),
    Peer("spdl", "spdl_tars", (Row("SPDL"),), ("spdl",), **_OPTIONAL),
    Peer(
        "ours",
        "shards",
        (
            Row("ours, processes"),
            Row("ours, threads"),
            Row("ours, inline"),
            Row("ours, processes, first run"),
            Row("ours, stream"),
            Row("ours, threads, own crop", data=("IMG",)),
            Row("ours, processes, crc32", data=ARRAYS),
            Row("ours, threads, crc32", data=ARRAYS),
            Row("ours, inline, crc32", data=ARRAYS),
            Row("ours, threads, mix", data=MIXED),
            Row("ours, threads, mix of other fields", data=MIXED),
        ),
        resumed=("ours, processes", "ours, threads"),
    ),
)

BASE = ("webdataset", "files", "ours")
"""Peers that run in the environment of this package."""


def chosen(names: list[str] | None) -> list[Peer]:
    """The peers of these names, or all that are not optional; ours and the reference always.

    Raises:
        ValueError: there is no such peer.
    """
    if names is None:
        return [peer for peer in PEERS if not peer.is_optional]
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        known = ", ".join(peer.name for peer in PEERS)
        raise ValueError(f"--peers knows {known}, not {', '.join(sorted(unknown))}")
    return [peer for peer in PEERS if peer.name in {*names, "webdataset", "ours"}]
