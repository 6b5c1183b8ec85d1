"""MosaicML Streaming: MDS shards, made from the same bytes."""

import json
import shutil
from importlib.metadata import version
from typing import Any

import torch

if torch.version.cuda is None and "+cpu" not in version("torchvision"):
    # The torchvision of PyPI is built for CUDA. Beside a torch without it, it cannot load its
    # operators, of which nothing here uses one, and only for want of these two it is not imported.
    _operators = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from benchmarks.peers.datasets import samples_of
from benchmarks.peers.job import Job
from benchmarks.peers.transforms import array_of, crop


def prepare(job: Job) -> None:
    """Shards of 64 MiB, its default."""
    out = job.own / "mds"
    shutil.rmtree(out, ignore_errors=True)
    with MDSWriter(out=str(out), columns={"data": "bytes", "label": "int"}) as writer:
        for _, fields in samples_of(job):
            data = fields["jpg"] if job.is_images else fields["npy"]
            writer.write({"data": data, "label": int(fields.get("cls", b"0"))})


class _Samples(StreamingDataset):
    decode: Any = None
    is_labelled = False

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        value = self.decode(sample["data"])
        return (value, sample["label"]) if self.is_labelled else value


def shards(job: Job, **where: Any) -> Any:
    """Shuffled by its default, py1e; from another place if one is given, with options for it."""
    clean_stale_shared_memory()
    where = where or {"local": str(job.own / "mds")}
    dataset = _Samples(shuffle=True, batch_size=job.batch, **where)
    dataset.decode = crop if job.is_images else array_of(job)
    dataset.is_labelled = job.is_images
    loader = StreamingDataLoader(
        dataset, batch_size=job.batch, num_workers=job.workers, drop_last=True
    )
    if job.position:
        loader.load_state_dict(json.loads(job.state_file.read_text()))
    return loader


def save_state(loader: Any, job: Job) -> None:
    """After `job.position` batches."""
    job.state_file.write_text(json.dumps(loader.state_dict()))


LOADERS = {"MosaicML Streaming": shards}
