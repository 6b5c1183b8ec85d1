"""python examples/order_by_length.py: an order of your own, so that texts of one length meet.

An `Order` says which sample stands at each position of an epoch. It inherits what it does not say.
"""

import hashlib
import tempfile
from dataclasses import replace

import numpy as np

from lightning_shards import Order, ShardDataModule, ShardLoader, ShardWriter, SplitConfig

TEXTS = ["word " * (1 + number * 7 % 40) for number in range(200)]


class ByLength(Order):
    """Short samples first, the same in every epoch; `lengths` are those in file order."""

    def __init__(self, counts: np.ndarray, lengths: np.ndarray) -> None:
        shards = np.repeat(np.arange(len(counts)), counts)
        numbers = np.arange(len(shards)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._ids = np.stack((shards, numbers), axis=1)[np.argsort(lengths, kind="stable")]
        self._lengths = hashlib.sha256(np.asarray(lengths, np.int64).tobytes()).hexdigest()[:16]

    @property
    def samples(self) -> int:
        """Samples of the data set."""
        return len(self._ids)

    def at(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """The sample ids at these positions; behind the last one it begins again."""
        return self._ids[np.arange(start, stop) % self.samples]

    def identity(self) -> dict[str, int | str]:
        """A checkpoint of other lengths is refused."""
        return {"sampling": "by_length", "lengths": self._lengths}


def padding(loader: ShardLoader) -> int:
    """Characters that fill the batches of an epoch up to their longest text."""
    sizes = [[len(text) for text in batch["text"]] for batch in loader]
    return sum(max(batch) * len(batch) - sum(batch) for batch in sizes)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        with ShardWriter(folder, max_samples=60) as shards:
            for number, text in enumerate(TEXTS):
                shards.write({"__key__": f"{number:03d}", "txt": text})
        split = SplitConfig(f"{folder}/*.tar", sampling="shuffled")
        loader = ShardDataModule(train=split, fields={"text": "txt"}, num_workers=0).loader("train")
        order = ByLength(loader.source.index.counts, np.array([len(text) for text in TEXTS]))
        sorted_loader = ShardLoader(replace(loader.source, order=order), loader.pool)
        print(f"padding: {padding(loader):,} shuffled, {padding(sorted_loader):,} by length")
