"""A fit from 8.3 TB in a bucket: `python -m benchmarks.remote_start`, Linux, from the root.

13,916 shards of 600 MB and 4,096 samples, 57 million samples in all, come from a server that makes
them up (`remote_servers/made_up_shards.py`) and is 30 ms late with each answer.

"plan": seconds of the command `lightning-shards plan`, its start included.

"first batch": from the begin of `prepare_data` to the first training step of a fit on 2 ranks
(gloo, no workers, batches of 256), with an empty cache. "memory" is how much the peak of a rank
grows from there on (VmHWM), batches of 37 MB included. The server counts what was asked for until
then: one index file, and tables of the first blocks.

"order": the fit goes on for --minutes of 1,000 samples/s, without waiting, on a node with a cache
of --cache-gib. Bytes that the server sent of shards over bytes of the members in the batches, from
the end of the second block to the end of the last whole one. Each class is held against the number
of its sample and each member against its crc32.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import lightning.pytorch as pl
import torch

from benchmarks.remote_servers.made_up_shards import (
    MEMBER_BYTES,
    PAYLOADS,
    ROOT,
    SHARDS,
    Running,
    made_up_shards,
)
from lightning_shards import EpochDigest, ShardDataModule

RANKS, BATCH, DELAY_S = 2, 256, 0.03
BLOCK = 16_384
PER_S = 1000
CONFIG = """
seed_everything: 0
trainer: {{devices: {ranks}}}
data:
  train:
    urls: s3://data/train-{{000000..{last:06d}}}.tar
    sampling: shuffled
  fields: {{data: npy, label: cls}}
  decode: {{data: npy, label: int}}
  batch_size: {batch}
  num_workers: {workers}
  loader:
    pool: {pool}
    cache_dir: {folder}/cache
    cache_gib: {cache_gib}
    storage_options: {{s3: {{endpoint: "{url}", region: us-east-1, anonymous: true}}}}
"""


class Timed(ShardDataModule):
    """Notes when it is asked for the data first, and what memory the rank had then."""

    began: float = 0.0
    before_mib: float = 0.0

    def prepare_data(self) -> None:
        """As of any data module."""
        self.begin()
        super().prepare_data()

    def setup(self, stage: str) -> None:
        """As of any data module."""
        self.begin()
        super().setup(stage)

    def begin(self) -> None:
        """On the first rank of a node when it prepares data, on others when they set up."""
        if not self.began:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            self.began, self.before_mib = time.perf_counter(), peak_mib()


class Reader(pl.LightningModule):
    """Trains nothing; tells its first batch, and what the server has counted at ends of blocks."""

    def __init__(self, data: Timed, url: str, folder: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.automatic_optimization = False
        self.data, self.url, self.folder = data, url, folder
        self.told: dict[str, Any] = {"blocks": []}

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Look at a batch."""
        if not self.told["blocks"]:
            self.told["first_s"] = time.perf_counter() - self.data.began
            self.told["memory_mib"] = peak_mib() - self.data.before_mib
        if self.trainer.is_global_zero and batch_idx * RANKS * BATCH % BLOCK == 0:
            self.told["blocks"].append([time.perf_counter() - self.data.began, counts(self.url)])
            print(batch_idx, self.told["blocks"][-1], flush=True)
        elif not self.told["blocks"]:
            self.told["blocks"].append([0, {}])
        numbers = batch["__id__"].sum(dim=1) % PAYLOADS
        if not torch.equal(numbers, batch["label"]):
            raise AssertionError(f"batch {batch_idx} has the bytes of other samples")

    def on_train_end(self) -> None:
        """Write down what was seen."""
        self.told["peak_mib"] = peak_mib() - self.data.before_mib
        (self.folder / f"told-{self.global_rank}.json").write_text(json.dumps(self.told))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One that is never asked."""
        return torch.optim.SGD(self.parameters(), 0.01)


def peak_mib() -> float:
    """The most memory that this process had resident."""
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024


def counts(url: str) -> dict[str, list[int]]:
    """What the server has counted."""
    with urlopen(f"{url}/counts") as answer:  # noqa: S310 it is our own
        return json.loads(answer.read())


def run_rank(folder: Path, url: str, steps: int) -> None:
    """What each of the ranks runs."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    data = Timed.from_config(folder / "config.yaml")
    trainer = pl.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=RANKS,
        max_steps=-1,
        max_epochs=1,
        limit_train_batches=steps,
        callbacks=[EpochDigest()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Reader(data, url, folder), data)


def write_config(folder: Path, url: str, options: argparse.Namespace) -> Path:
    """The configuration of the fit, which `plan` reads, too."""
    given = {"ranks": RANKS, "last": SHARDS - 1, "batch": BATCH, "folder": folder, "url": url}
    workers = options.workers
    pool = {"pool": options.pool if workers else "inline", "workers": workers}
    path = folder / "config.yaml"
    path.write_text(CONFIG.format(**given, **pool, cache_gib=options.cache_gib))
    return path


def plan_s(config: Path) -> float:
    """Seconds of the command."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "lightning_shards", "plan", "--config", str(config)]
    subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603
    return time.perf_counter() - began


def fit(folder: Path, server: Running, steps: int) -> list[dict[str, Any]]:
    """What each rank told."""
    command = [sys.executable, "-m", "benchmarks.remote_start", "--rank-in", str(folder)]
    command += ["--url", server.url, "--steps", str(steps)]
    shared = {"NODE_RANK": "0", "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(20_000 + os.getpid() % 10_000), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(command, env=os.environ | shared | {"LOCAL_RANK": str(rank)}, cwd=ROOT)  # noqa: S603, TID251
        for rank in range(RANKS)
    ]
    if any(list(map(subprocess.Popen.wait, ranks))):
        sys.exit("a rank has failed")
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(RANKS)]


def report(planned_s: float, told: list[dict[str, Any]]) -> str:
    """The rows of a Markdown table."""
    blocks = told[0]["blocks"]
    first = blocks[0][1]
    rows = [
        ("`plan`, s", f"{planned_s:.2f}", "2"),
        ("first batch, s", " and ".join(f"{rank['first_s']:.2f}" for rank in told), "3"),
        ("memory at it, MiB", " and ".join(f"{rank['memory_mib']:.0f}" for rank in told), "200"),
        ("index files until then", f"{first['index'][0]}", "1"),
        ("tables until then", f"{first['table'][0]}, {first['table'][1] / 1e6:.0f} MB", ""),
        ("ranges until then", f"{first['shard'][0]}, {first['shard'][1] / 1e6:.0f} MB", ""),
    ]
    if len(blocks) > 3:  # noqa: PLR2004 two blocks, one more, and the begin of the next
        (began, begin), (ended, end) = blocks[2], blocks[-1]
        sent, needed = end["shard"][1] - begin["shard"][1], (len(blocks) - 3) * BLOCK * MEMBER_BYTES
        requests = end["shard"][0] - begin["shard"][0]
        rows += [
            (f"bytes sent / needed of {len(blocks) - 3} blocks", f"{sent / needed:.3f}", "1.05"),
            ("bytes in them", f"{sent / 1e9:.1f} GB in {requests:,} requests", ""),
            ("seconds for them", f"{ended - began:.0f}", ""),
            ("peak memory, MiB", " and ".join(f"{rank['peak_mib']:.0f}" for rank in told), ""),
        ]
    lines = ["| | | at most |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def main() -> None:
    """Run all, or be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=10, help="0: only until the first batch")
    parser.add_argument("--cache-gib", type=float, default=9.0)
    parser.add_argument("--cache-in", default="/dev/shm", help="a folder with room for the cache")  # noqa: S108
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pool", default="threads")
    parser.add_argument("--delay-s", type=float, default=DELAY_S)
    parser.add_argument("--rank-in", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_in:
        run_rank(options.rank_in, options.url, options.steps)
        return
    blocks = int(options.minutes * 60 * PER_S) // BLOCK
    steps = max(1, blocks * BLOCK // (RANKS * BATCH) + 1)
    with (
        TemporaryDirectory(dir=options.cache_in) as name,
        made_up_shards(SHARDS, options.delay_s) as server,
    ):
        config = write_config(Path(name), server.url, options)
        planned_s = plan_s(config)
        print(report(planned_s, fit(Path(name), server, steps)))


if __name__ == "__main__":
    main()
