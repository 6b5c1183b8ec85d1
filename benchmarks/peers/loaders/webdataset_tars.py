"""webdataset, in the ways its users write it."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import webdataset as wds

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import array_of, crop, crop_pil

SHUFFLED = 1000
"""Samples in the buffer, as in webdataset's README."""


class _From:
    """An epoch begun again, and its first batches thrown away: there is no other way to resume."""

    def __init__(self, loader: Any, skipped: int) -> None:
        self._loader, self._skipped = loader, skipped

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._loader), self._skipped, None)


def _loader(job: Job, stages: Callable[[Any], Any], *, rebatch: bool = False) -> Any:
    stream = wds.WebDataset(job.shards, shardshuffle=job.data.shards).shuffle(SHUFFLED)
    batched = stages(stream).batched(job.batch, partial=False)
    loader = wds.WebLoader(batched, batch_size=None, num_workers=job.workers)
    if rebatch:
        loader = loader.unbatched().shuffle(SHUFFLED).batched(job.batch, partial=False)
    return _From(loader, job.position) if job.position else loader


def _fast(job: Job) -> Callable[[Any], Any]:
    if job.is_images:
        return lambda stream: stream.to_tuple("jpg", "cls").map_tuple(crop, int)
    return lambda stream: stream.to_tuple("npy").map_tuple(array_of(job))


def fast(job: Job) -> Any:
    """The transform of all loaders, batched in the worker."""
    return _loader(job, _fast(job))


def as_written(job: Job) -> Any:
    """With webdataset's own decoders: Pillow for images, `np.load` for arrays."""
    if job.is_images:
        return _loader(
            job, lambda s: s.decode("pil").to_tuple("jpg", "cls").map_tuple(crop_pil, None)
        )
    return _loader(job, lambda stream: stream.decode().to_tuple("npy"))


def recipe(job: Job) -> Any:
    """The README's recipe: batched in the worker, mixed between workers, batched again."""
    return _loader(job, _fast(job), rebatch=True)


LOADERS = {"webdataset": fast, "webdataset, own decoders": as_written, "webdataset, recipe": recipe}
