"""HF datasets: its webdataset builder, streamed under torch's DataLoader."""

from typing import Any

import numpy as np
import torch
from datasets import Image, load_dataset
from torch.utils.data import DataLoader

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import ARRAYS, crop

SHUFFLED = 1000
"""Samples in the buffer, as for webdataset."""


def _images(samples: list[Any]) -> Any:
    pixels = np.stack([crop(each["jpg"]["bytes"]) for each in samples])
    return torch.from_numpy(pixels), torch.tensor([each["cls"] for each in samples])


def _small(samples: list[Any]) -> Any:
    return torch.from_numpy(np.array([each["npy"] for each in samples], ARRAYS["SMALL"]))


def _tokens(samples: list[Any]) -> Any:
    return torch.from_numpy(np.array([each["npy"] for each in samples], ARRAYS["TOK"]))


_COLLATES = {"IMG": _images, "SMALL": _small, "TOK": _tokens}


def tars(job: Job) -> Any:
    """The builder decodes arrays itself; images are left to our transform."""
    files = {"train": job.shards}
    stream: Any = load_dataset("webdataset", data_files=files, split="train", streaming=True)
    if job.is_images:
        stream = stream.cast_column("jpg", Image(decode=False))
    return DataLoader(
        stream.shuffle(buffer_size=SHUFFLED),
        batch_size=job.batch,
        num_workers=job.workers,
        collate_fn=_COLLATES[job.data.name],
        drop_last=True,
    )


LOADERS = {"HF datasets": tars}
