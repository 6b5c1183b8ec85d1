"""python examples/batch_alike.py: how much of a batch is padding, shuffled and with `batch_alike`.

Samples are the notes of `audio.py`, and documents as tokens, of which most are short and a few are
long. With `batch_alike` those of like size are in one batch: by the sizes in the member tables,
without reading a sample.
"""

import tempfile
from pathlib import Path

import audio
import numpy as np

from lightning_shards import ShardDataModule, ShardWriter, SplitConfig

BATCH_SIZE, RANKS = 16, 4


def pack_documents(folder: Path, samples: int, seed: int) -> None:
    """Documents of about 400 tokens; one of a hundred has more than 2,000."""
    rng = np.random.default_rng(seed)
    with ShardWriter(folder, max_samples=1000) as writer:
        for number, length in enumerate(rng.lognormal(6, 0.75, samples).astype(int)):
            tokens = rng.integers(50_304, size=length).astype("<u2")
            writer.write({"__key__": f"{number:06d}", "bin": tokens.tobytes()})


def padding(split: SplitConfig, suffix: str) -> float:
    """The share of the batches of all ranks that fills samples up to the longest of their batch."""
    data = ShardDataModule(
        train=split,
        fields={"sample": suffix},
        decode={"sample": "raw"},  # only the lengths are of interest here
        batch_size=BATCH_SIZE,
        num_workers=0,
    )
    loaders = [data.loader("train", rank=rank, world_size=RANKS) for rank in range(RANKS)]
    sizes = [list(map(len, batch["sample"])) for loader in loaders for batch in loader]
    return 1 - sum(map(sum, sizes)) / sum(max(batch) * len(batch) for batch in sizes)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, suffix, pack in (("notes", "wav", audio.pack), ("tokens", "bin", pack_documents)):
            pack(Path(folder, name), 5000, seed=0)
            urls = f"{folder}/{name}/*.tar"
            shuffled = SplitConfig(urls, sampling="shuffled")
            alike = SplitConfig(
                urls,
                sampling="shuffled",
                batch_alike={"field": "sample", "group": RANKS * BATCH_SIZE},
            )
            before, after = padding(shuffled, suffix), padding(alike, suffix)
            print(f"{name}: padding is {before:.1%} of a batch, {after:.1%} with batch_alike")
