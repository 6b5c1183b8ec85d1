"""python benchmarks/epoch_end.py: how long a model waits for the first batch of the next epoch.

Each loader gives epochs of 16 batches of 4 samples with two workers; a sample takes 5 ms to decode.
Between two epochs the "model validates" for 0.3 s. Then the clock runs until the first batch of the
next epoch is there. Rounds alternate between the loaders, so that a slow minute hits all of them.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from webdataset.compat import WebDataset, WebLoader
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

DECODE_S, VALIDATION_S = 0.005, 0.3
SHARDS, SAMPLES, BATCH, WORKERS = 8, 8, 4, 2  # 64 samples, 16 batches


def slow(value: int) -> int:
    """A decoder that takes its time."""
    time.sleep(DECODE_S)
    return value


def slow_sample(sample: dict[str, bytes]) -> tuple[int]:
    """The same for webdataset."""
    return (slow(int(sample["cls"])),)


class Files(Dataset[int]):
    """The same samples without shards."""

    def __len__(self) -> int:
        return SHARDS * SAMPLES

    def __getitem__(self, number: int) -> int:
        return slow(number)


def pack(folder: Path) -> str:
    """Eight shards of eight samples."""
    for shard in range(SHARDS):
        with TarWriter(str(folder / f"{shard}.tar")) as writer:
            for number in range(SAMPLES):
                writer.write({"__key__": f"{number:03d}", "cls": str(number)})
    return f"{folder}/{{0..{SHARDS - 1}}}.tar"


def ours(urls: str, cache: str, context: str, sampling: str) -> Iterable[object]:
    """Our loader, as the data module makes it."""
    module = ShardDataModule(
        SplitConfig(urls, sampling=sampling),  # type: ignore[arg-type]
        fields={"label": "cls"},
        transforms={"label": slow},
        batch_size=BATCH,
        num_workers=WORKERS,
        loader=LoaderConfig(multiprocessing_context=context, cache_dir=cache),  # type: ignore[arg-type]
    )
    return module.loader("train")


def webloader(urls: str, *, persistent: bool) -> Iterable[object]:
    """As webdataset's users write it: resampled, batched in the worker."""
    stream = WebDataset(urls, resampled=True, shardshuffle=False).map(slow_sample).batched(BATCH)
    loader = WebLoader(stream, batch_size=None, num_workers=WORKERS, persistent_workers=persistent)
    return loader.with_epoch(SHARDS * SAMPLES // BATCH)


def gaps(loader: Iterable[object], epochs: int) -> list[float]:
    """Milliseconds from the end of each validation to the next epoch's first batch."""
    waited: list[float] = []
    for epoch in range(epochs + 1):
        begin = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        if epoch:
            waited.append(1000 * (time.perf_counter() - begin))
        for _ in iterator:
            pass
        time.sleep(VALIDATION_S)
    return waited


def main() -> None:
    """Measure all loaders in turn and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        urls = pack(Path(folder))
        plain = {"batch_size": BATCH, "num_workers": WORKERS}
        makers: dict[str, Callable[[], Iterable[object]]] = {
            "ours, resampled, forkserver": lambda: ours(urls, folder, "forkserver", "resampled"),
            "ours, resampled, fork": lambda: ours(urls, folder, "fork", "resampled"),
            "ours, shuffled, forkserver": lambda: ours(urls, folder, "forkserver", "shuffled"),
            "WebLoader": lambda: webloader(urls, persistent=False),
            "WebLoader, persistent": lambda: webloader(urls, persistent=True),
            "DataLoader": lambda: DataLoader(Files(), **plain),
            "DataLoader, persistent": lambda: DataLoader(Files(), persistent_workers=True, **plain),
        }
        loaders = {name: make() for name, make in makers.items()}
        waited: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(arguments.rounds):
            for name, loader in loaders.items():
                waited[name] += gaps(loader, arguments.epochs)
    reference = statistics.median(waited["WebLoader"])
    print(f"{'gap at an epoch end':30}{'median ms':>11}{'min':>8}{'max':>8}{'WebLoader/':>12}")
    for name, values in waited.items():
        median = statistics.median(values)
        row = f"{name:30}{median:11.2f}{min(values):8.2f}{max(values):8.2f}"
        print(f"{row}{reference / median:11.1f}x")


if __name__ == "__main__":
    main()
