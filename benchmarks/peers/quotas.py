"""How evenly mixtures of two components are composed: `python -m benchmarks.peers.quotas --help`.

Two components of 3,000 and 1,000 samples are mixed 3 to 1, in batches of 64 on one rank without
workers. Printed is, over the first 60 batches, the mean of the small component's count, of which 16
are wanted, and its standard deviation. Each loader mixes as its documentation says: LitData and
MosaicML Streaming stratified, webdataset by RandomMix, ours in rounds of a batch. Each is run by an
interpreter that has it, as `benchmarks.peers` installs them below its `--folder`.
"""

import argparse
import importlib
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

SIZES = {"large": 3000, "small": 1000}
SHARES = {"large": 0.75, "small": 0.25}
BATCH, BATCHES = 64, 60


def pack(folder: Path) -> dict[str, str]:
    """A tar of each component, whose samples hold the name of the component."""
    from lightning_shards.dataprep.writing.tar_writer import write_shard

    urls = {name: str(folder / f"{name}.tar") for name in SIZES}
    for name, size in SIZES.items():
        write_shard(
            Path(urls[name]),
            [(f"{name}{number:05d}", [("txt", name.encode())]) for number in range(size)],
        )
    return urls


def ours(folder: Path) -> Iterator[list[str]]:
    """Rounds of a batch."""
    from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

    mix: dict[str, Any] = {
        name: {"urls": url, "weight": SHARES[name]} for name, url in pack(folder).items()
    }
    split = SplitConfig(mix=mix, sampling="shuffled", round=BATCH, dataset_size=BATCH * BATCHES)
    module = ShardDataModule(
        split,
        fields={"name": "txt"},
        batch_size=BATCH,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(folder / "cache")),
    )
    return (batch["name"] for batch in module.loader("train"))


def webdataset(folder: Path) -> Iterator[list[str]]:
    """RandomMix of two streams that begin again at their ends; its draws cannot be seeded."""
    import webdataset as wds
    from webdataset.mix import RandomMix

    sets = [
        wds.WebDataset(url, shardshuffle=False).shuffle(1000).decode().repeat()
        for url in pack(folder).values()
    ]
    samples = iter(RandomMix(sets, list(SHARES.values())))
    return iter(lambda: [sample["txt"] for sample in islice(samples, BATCH)], [])


def _numbered(number: int, name: str) -> dict[str, Any]:
    return {"number": number, "name": name}


def litdata(folder: Path) -> Iterator[list[str]]:
    """Its combined data set, stratified."""
    from functools import partial

    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, optimize

    for name, size in SIZES.items():
        optimize(
            fn=partial(_numbered, name=name),
            inputs=list(range(size)),
            output_dir=str(folder / name),
            num_workers=1,
            chunk_bytes="1MB",
        )
    mixed = CombinedStreamingDataset(
        [StreamingDataset(str(folder / name), shuffle=True) for name in SIZES],
        weights=list(SHARES.values()),
        batching_method="stratified",
        iterate_over_all=False,
        seed=0,
    )
    loader = StreamingDataLoader(mixed, batch_size=BATCH, num_workers=0)
    return (batch["name"] for batch in loader)


def mosaic(folder: Path) -> Iterator[list[str]]:
    """Streams with proportions, stratified."""
    # it makes torchvision importable
    importlib.import_module("benchmarks.peers.loaders.mosaic_shards")
    from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    for name, size in SIZES.items():
        with MDSWriter(out=str(folder / name), columns={"name": "str"}) as writer:
            for _ in range(size):
                writer.write({"name": name})
    mixed = StreamingDataset(
        streams=[Stream(local=str(folder / name), proportion=SHARES[name]) for name in SIZES],
        batching_method="stratified",
        batch_size=BATCH,
        shuffle=True,
        epoch_size=sum(SIZES.values()),
    )
    loader = StreamingDataLoader(mixed, batch_size=BATCH, num_workers=0)
    return (batch["name"] for batch in loader)


LOADERS: dict[str, Callable[[Path], Iterator[list[str]]]] = {
    each.__name__: each for each in (ours, webdataset, litdata, mosaic)
}


def main() -> None:
    """Measure one loader, in the interpreter that has it, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("loader", choices=LOADERS)
    name = parser.parse_args().loader
    with tempfile.TemporaryDirectory() as folder:
        batches = islice(LOADERS[name](Path(folder)), BATCHES)
        counts = [list(batch).count("small") for batch in batches]
    deviation = statistics.pstdev(counts)
    print(json.dumps({
        "loader": name, "batches": len(counts), "mean": round(statistics.fmean(counts), 2),
        "standard_deviation": round(deviation, 2), "least": min(counts), "most": max(counts),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
