"""Megatron-Energon: the same tars, indexed by its own command."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import transform_of

SHUFFLED = 1000
"""Samples in the buffer, as for webdataset."""


def prepare(job: Job) -> None:
    """Its index, in the folder of the tars."""
    command = [str(Path(sys.executable).parent / "energon"), "prepare", str(job.home / "tar")]
    options = ["--non-interactive", "--force-overwrite", "--num-workers", "2", "--no-progress"]
    kind = ["--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
    subprocess.run([*command, *options, *kind], check=True)  # noqa: S603
    job.own.mkdir(exist_ok=True)


@dataclass
class _Cooked(Sample):
    value: Any
    label: int


@stateless
def _cook(sample: Any) -> _Cooked:
    """Bytes: what is cooked waits in the shuffle buffer, and is transformed behind it."""
    data = sample["jpg"] if "jpg" in sample else sample["npy"]
    return _Cooked(**basic_sample_keys(sample), value=data, label=int(sample.get("cls", 0)))


class _Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None
    cookers = (Cooker(_cook),)

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._transform = transform_of(job)

    @stateless
    def encode_sample(self, sample: _Cooked) -> _Cooked:
        return replace(sample, value=torch.from_numpy(self._transform(sample.value)))

    def batch(self, samples: list[_Cooked]) -> Any:
        values = torch.stack([each.value for each in samples])
        return values, torch.tensor([each.label for each in samples])


def tars(job: Job) -> Any:
    """Its training data set with a shuffle buffer, and the loader whose state can be saved."""
    dataset = get_train_dataset(
        str(job.home / "tar"),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=job.workers),
        batch_size=job.batch,
        batch_drop_last=True,
        shuffle_buffer_size=SHUFFLED,
        max_samples_per_sequence=None,
        task_encoder=_Encoder(job),
        repeat=False,
    )
    loader = get_savable_loader(dataset)
    if job.position:
        loader.restore_state_rank(torch.load(job.state_file, weights_only=False))
    return loader


def save_state(loader: Any, job: Job) -> None:
    """After `job.position` batches."""
    torch.save(loader.save_state_rank(), job.state_file)


LOADERS = {"Megatron-Energon": tars}
