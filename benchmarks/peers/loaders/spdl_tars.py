"""SPDL: its tar iterator and a pipeline of threads; it has no shuffle within shards."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from spdl.io import iter_tarfile
from spdl.pipeline import PipelineBuilder

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import array_of, crop


def _images(shards: list[str]) -> Iterator[tuple[Any, Any]]:
    for shard in shards:
        members = iter(iter_tarfile(Path(shard).read_bytes()))
        for (_, jpeg), (_, label) in zip(members, members, strict=True):
            yield jpeg, int(bytes(label))


def _arrays(shards: list[str]) -> Iterator[tuple[Any, Any]]:
    for shard in shards:
        for _, data in iter_tarfile(Path(shard).read_bytes()):
            yield data, 0


class _Epochs:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._decode = crop if job.is_images else array_of(job)

    def __iter__(self) -> Iterator[Any]:
        shards = np.random.default_rng().permutation(self._job.shards).tolist()
        source = (_images if self._job.is_images else _arrays)(shards)
        pipeline = (
            PipelineBuilder()
            .add_source(source)
            .aggregate(self._job.batch, drop_last=True)
            .pipe(self._make, concurrency=max(1, self._job.workers))
            .add_sink(2)
            .build(num_threads=max(1, self._job.workers))
        )
        with pipeline.auto_stop():
            yield from pipeline

    def _make(self, samples: list[tuple[Any, Any]]) -> Any:
        values = np.stack([self._decode(data) for data, _ in samples])
        return torch.from_numpy(values), torch.tensor([label for _, label in samples])


def tars(job: Job) -> Any:
    """Whole batches a task, so that a small sample does not pay for one."""
    return _Epochs(job)


LOADERS = {"SPDL": tars}
