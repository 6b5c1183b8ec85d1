"""wids: samples of tars by number, under torch's DataLoader."""

import json
from typing import Any

import wids
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import array_of, crop


def prepare(job: Job) -> None:
    """The JSON that lists the shards."""
    per_shard, rest = divmod(job.data.samples, job.data.shards)
    shards = [
        {"url": path, "nsamples": per_shard + (number < rest)}
        for number, path in enumerate(job.shards)
    ]
    job.own.mkdir(exist_ok=True)
    text = json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards})
    (job.own / "index.json").write_text(text)


class _Image:
    def __call__(self, sample: dict[str, Any]) -> Any:
        return crop(sample[".jpg"].read()), int(sample[".cls"].read())


class _Array:
    def __init__(self, job: Job) -> None:
        self._decode = array_of(job)

    def __call__(self, sample: dict[str, Any]) -> Any:
        return self._decode(sample[".npy"].read())


class _Rest(DistributedSampler[Any]):
    """The sampler of an epoch from a position on."""

    position = 0

    def __iter__(self) -> Any:
        return iter(list(super().__iter__())[self.position :])


def tars(job: Job) -> Any:
    """A DistributedSampler, as in its README."""
    dataset = wids.ShardListDataset(
        str(job.own / "index.json"),
        transformations=[_Image() if job.is_images else _Array(job)],
        keep=True,
    )
    sampler = _Rest(dataset, num_replicas=1, rank=0, shuffle=True)
    sampler.position = job.position * job.batch
    return DataLoader(
        dataset, batch_size=job.batch, sampler=sampler, num_workers=job.workers, drop_last=True
    )


LOADERS = {"wids": tars}
