"""wids: samples of tars by number, under torch's DataLoader."""

import json
from functools import partial
from typing import Any

import wids
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import transform_of


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


def _decoded(sample: dict[str, Any], transform: Any) -> Any:
    if ".jpg" in sample:
        return transform(sample[".jpg"].read()), int(sample[".cls"].read())
    return transform(sample[".npy"].read())


class _Rest(DistributedSampler[Any]):
    """The sampler of an epoch from a position on."""

    position = 0

    def __iter__(self) -> Any:
        return iter(list(super().__iter__())[self.position :])


def tars(job: Job) -> Any:
    """A DistributedSampler, as in its README."""
    dataset = wids.ShardListDataset(
        str(job.own / "index.json"),
        transformations=[partial(_decoded, transform=transform_of(job))],
        keep=True,
    )
    sampler = _Rest(dataset, num_replicas=1, rank=0, shuffle=True)
    sampler.position = job.position * job.batch
    return DataLoader(
        dataset, batch_size=job.batch, sampler=sampler, num_workers=job.workers, drop_last=True
    )


LOADERS = {"wids": tars}
