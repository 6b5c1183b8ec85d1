"""Ray Data: `read_webdataset` on as many cores as the others have workers."""

from collections.abc import Iterator
from typing import Any

import ray

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import crop, small_array, token_array

SHUFFLED = 1000
"""Samples in the buffer, as for webdataset."""


def _image(sample: dict[str, Any]) -> dict[str, Any]:
    return {"value": crop(sample["jpg"]), "label": int(sample["cls"])}


def _small(sample: dict[str, Any]) -> dict[str, Any]:
    return {"value": small_array(sample["npy"])}


def _tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return {"value": token_array(sample["npy"])}


_MAPS = {"IMG": _image, "SMALL": _small, "TOK": _tokens}


class _Epochs:
    def __init__(self, job: Job) -> None:
        self._batch = job.batch
        ray.init(num_cpus=job.workers, include_dashboard=False, log_to_driver=False)
        data = ray.data.read_webdataset(job.shards, decoder=None, shuffle="files")
        self._data = data.map(_MAPS[job.data.name])

    def __iter__(self) -> Iterator[Any]:
        return iter(
            self._data.iter_batches(
                batch_size=self._batch,
                batch_format="numpy",
                drop_last=True,
                local_shuffle_buffer_size=SHUFFLED,
            )
        )


def tars(job: Job) -> Any:
    """Its start is in the time to the first batch."""
    return _Epochs(job)


LOADERS = {"Ray Data": tars}
