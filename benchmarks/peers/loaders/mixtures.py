"""Mixtures of two components, 3 to 1, by ours and by peers, each as its documentation says.

A sample is its own name: that of its component and a number. A peer is imported where it is used,
since each has an interpreter of its own.
"""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

SIZES = {"large": 3072, "small": 1024}
SHARES = {"large": 0.75, "small": 0.25}
GLOBAL_BATCH = 64
SHARDS = 4


class Part(NamedTuple):
    """One rank's part of a job.

    Attributes:
        folder: where `prepare` has put the data.
        rank, world_size: of the job; with more than one rank, torch.distributed is initialised.
        state: what an earlier job saved, or None.
    """

    folder: Path
    rank: int = 0
    world_size: int = 1
    state: Any = None

    @property
    def batch(self) -> int:
        """Samples per rank and step."""
        return GLOBAL_BATCH // self.world_size


class Opened(NamedTuple):
    """A loader on one rank.

    Attributes:
        batches: the names of the samples of each.
        save: the state behind the batch yielded last; None where the loader has none.
    """

    batches: Iterator[list[str]]
    save: Callable[[], Any] = lambda: None


class Mixture(NamedTuple):
    """How one loader's data is made, and how it is opened."""

    prepare: Callable[[Path], None]
    open: Callable[[Part], Opened]


def _names(component: str) -> list[str]:
    return [f"{component}{number:05d}" for number in range(SIZES[component])]


def _named(number: int, component: str) -> dict[str, Any]:
    return {"name": f"{component}{number:05d}"}


def _pack(folder: Path) -> None:
    """Four tars of each component."""
    from lightning_shards.dataprep.tar_writer import write_shard

    for component in SIZES:
        (folder / component).mkdir()
        names = _names(component)
        for shard in range(SHARDS):
            samples = [(name, [("txt", name.encode())]) for name in names[shard::SHARDS]]
            write_shard(folder / component / f"{shard}.tar", samples)


def _urls(part: Part) -> dict[str, list[str]]:
    return {
        name: [str(part.folder / name / f"{shard}.tar") for shard in range(SHARDS)]
        for name in SIZES
    }


def _ours(part: Part) -> Opened:
    """Rounds of a batch."""
    from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

    mix: dict[str, Any] = {
        name: {"urls": urls, "weight": SHARES[name]} for name, urls in _urls(part).items()
    }
    samples = sum(SIZES.values())
    split = SplitConfig(mix=mix, sampling="shuffled", round=GLOBAL_BATCH, dataset_size=samples)
    module = ShardDataModule(
        split,
        fields={"name": "txt"},
        batch_size=part.batch,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(part.folder / "cache")),
    )
    loader = module.loader("train", rank=part.rank, world_size=part.world_size)
    if part.state:
        loader.load_state_dict(part.state)
    return Opened((batch["name"] for batch in loader), loader.state_dict)


def _webdataset(part: Part) -> Opened:
    """RandomMix of two streams that begin again at their ends; its draws cannot be seeded."""
    import webdataset as wds
    from webdataset.mix import RandomMix

    sets = [
        wds.WebDataset(urls, shardshuffle=SHARDS, nodesplitter=wds.split_by_node)
        .shuffle(1000)
        .decode()
        .repeat()
        for urls in _urls(part).values()
    ]
    samples = iter(RandomMix(sets, list(SHARES.values())))
    return Opened(iter(lambda: [sample["txt"] for sample in islice(samples, part.batch)], []))


def _optimize(folder: Path) -> None:
    from litdata import optimize

    for component, size in SIZES.items():
        optimize(
            fn=partial(_named, component=component),
            inputs=list(range(size)),
            output_dir=str(folder / component),
            num_workers=1,
            chunk_size=256,
        )


def _litdata(part: Part) -> Opened:
    """Its combined data set, stratified."""
    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset

    mixed = CombinedStreamingDataset(
        [StreamingDataset(str(part.folder / name), shuffle=True) for name in SIZES],
        weights=list(SHARES.values()),
        batching_method="stratified",
        iterate_over_all=False,
        seed=0,
    )
    loader = StreamingDataLoader(mixed, batch_size=part.batch, num_workers=0)
    if part.state:
        loader.load_state_dict(part.state)
    return Opened((batch["name"] for batch in loader), loader.state_dict)


def _write_mds(folder: Path) -> None:
    # it makes torchvision importable
    importlib.import_module("benchmarks.peers.loaders.mosaic_shards")
    from streaming import MDSWriter

    for component in SIZES:
        with MDSWriter(out=str(folder / component), columns={"name": "str"}) as writer:
            for name in _names(component):
                writer.write({"name": name})


def _mosaic(part: Part) -> Opened:
    """Streams with proportions, stratified."""
    importlib.import_module("benchmarks.peers.loaders.mosaic_shards")
    from streaming import Stream, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    if part.rank == 0 and part.world_size == 1:
        clean_stale_shared_memory()
    mixed = StreamingDataset(
        streams=[Stream(local=str(part.folder / name), proportion=SHARES[name]) for name in SIZES],
        batching_method="stratified",
        batch_size=part.batch,
        shuffle=True,
        epoch_size=sum(SIZES.values()),
    )
    loader = StreamingDataLoader(mixed, batch_size=part.batch, num_workers=0)
    if part.state:
        loader.load_state_dict(part.state)
    return Opened((batch["name"] for batch in loader), loader.state_dict)


_BLEND = """__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
"""


def _index(folder: Path) -> None:
    """The same tars, indexed by its own command, and the file that blends them."""
    _pack(folder)
    program = str(Path(sys.executable).parent / "energon")
    options = ["--non-interactive", "--force-overwrite", "--num-workers", "1", "--no-progress"]
    kind = ["--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
    for component in SIZES:
        command = [program, "prepare", str(folder / component), *options, *kind]
        subprocess.run(command, check=True, timeout=300)  # noqa: S603
    parts = [f"      - {{weight: {SHARES[name]}, path: ./{name}}}\n" for name in SIZES]
    (folder / "blend.yaml").write_text(_BLEND + "".join(parts))


def _energon(part: Part) -> Opened:
    """Its blend of two data sets; the state of a rank is that rank's."""
    from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

    from benchmarks.peers.loaders.energon_names import NamesEncoder

    dataset = get_train_dataset(
        str(part.folder / "blend.yaml"),
        worker_config=WorkerConfig(rank=part.rank, world_size=part.world_size, num_workers=0),
        batch_size=part.batch,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=None,
        task_encoder=NamesEncoder(),
    )
    loader = get_savable_loader(dataset)
    if part.state:
        loader.restore_state_rank(part.state)
    return Opened(iter(loader), loader.save_state_rank)


MIXTURES = {
    "ours": Mixture(_pack, _ours),
    "webdataset": Mixture(_pack, _webdataset),
    "litdata": Mixture(_optimize, _litdata),
    "mosaic": Mixture(_write_mds, _mosaic),
    "energon": Mixture(_index, _energon),
}
