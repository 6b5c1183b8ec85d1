"""LitData: chunks of its own, made from the same bytes."""

import shutil
from functools import partial
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

from benchmarks.peers.datasets import samples_of
from benchmarks.peers.job import Job
from benchmarks.peers.transforms import LENGTHS, array_of, crop

CHUNK_BYTES = "64MB"


def prepare(job: Job) -> None:
    """Chunks of samples; of tokens, in the format that LitData has for them."""
    out = job.own / "chunks"
    shutil.rmtree(out, ignore_errors=True)
    is_tokens = job.data.name == "TOK"
    samples = list(samples_of(job))
    # a chunk of tokens holds whole blocks
    size = {"chunk_size": LENGTHS["TOK"] * 8192} if is_tokens else {"chunk_bytes": CHUNK_BYTES}
    optimize(
        fn=partial(_packed, job=job),
        inputs=samples,
        output_dir=str(out),
        num_workers=1,
        item_loader=TokensLoader(block_size=LENGTHS["TOK"]) if is_tokens else None,
        **size,
    )


def _packed(sample: Any, job: Job) -> Any:
    _, fields = sample
    if job.is_images:
        return {"data": fields["jpg"], "label": int(fields["cls"])}
    if job.data.name == "TOK":
        return torch.from_numpy(array_of(job)(fields["npy"]).copy())
    return {"data": fields["npy"]}


class _Images(StreamingDataset):
    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return crop(sample["data"]), sample["label"]


class _Arrays(StreamingDataset):
    decode: Any = None

    def __getitem__(self, index: Any) -> Any:
        return self.decode(super().__getitem__(index)["data"])


def chunks(job: Job, where: Any = None, **options: Any) -> Any:
    """Shuffled, by its own loader; from another place if one is given, with options for it."""
    options |= {"shuffle": True, "drop_last": True}
    where = where or str(job.own / "chunks")
    if job.is_images:
        dataset: Any = _Images(where, **options)
    elif job.data.name == "TOK":
        loader = TokensLoader(block_size=LENGTHS["TOK"])
        dataset = StreamingDataset(where, item_loader=loader, **options)
    else:
        dataset = _Arrays(where, **options)
        dataset.decode = array_of(job)
    loader = StreamingDataLoader(
        dataset, batch_size=job.batch, num_workers=job.workers, drop_last=True
    )
    if job.position:
        loader.load_state_dict(torch.load(job.state_file))
    return loader


def save_state(loader: Any, job: Job) -> None:
    """After `job.position` batches."""
    torch.save(loader.state_dict(), job.state_file)


LOADERS = {"LitData": chunks}
