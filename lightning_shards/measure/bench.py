"""What `bench` measures: transforms, the loader, a training step, and plain webdataset beside them.

Each measurement begins after the first batches: by then workers have started, the batches that they
kept ready are used up, and kernels are chosen. All rates are samples per second of one rank.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple, cast

import lightning.pytorch as pl
import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader
from webdataset.compat import WebLoader
from webdataset.filters import batched, shuffle
from webdataset.pipeline import DataPipeline
from webdataset.shardlists import ResampledShards
from webdataset.tariterators import tarfile_to_samples

from lightning_shards.datamodule import ShardDataModule
from lightning_shards.errors import ConfigError, SampleError, count_of
from lightning_shards.measure.rates import rate_text
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.stream import (
    ApplyTransforms,
    DecodeFields,
    StreamSource,
    own_decoders,
)
from lightning_shards.samples.collate import Sample, collate
from lightning_shards.samples.fields import optional_names, with_arrays
from lightning_shards.samples.generators import SampleSeeds
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.transforms import SampleTransforms, layouts_of
from lightning_shards.shards.urls import is_local

GOOD_ENOUGH: Final = 0.95
"""Fewer workers are taken from this share of the best rate on: runs differ by as much."""

_WARM_UP: Final = 3
"""Steps of a fit that are not measured."""


class LoaderRates(NamedTuple):
    """Rates of a loader alone: all that it does, and decoding and transforms by themselves."""

    loader: float
    transforms: float


class Advice(NamedTuple):
    """The number of workers to take, and a sentence that says why."""

    num_workers: int
    sentence: str


def measure_loader(data: ShardDataModule, num_workers: int, seconds: float) -> LoaderRates:
    """Measure the train loader with so many workers, from epoch to epoch without a break.

    Raises:
        ShardError: No batch can be made, or not with so many workers.
    """
    data.num_workers = num_workers
    loader = data.loader("train")
    with closing(loader):
        pool = loader.pool.describe()
        ready = pool.num_workers * pool.prefetch_factor
        batches = chain.from_iterable(repeat(loader))
        rate = _rate_of(batches, seconds, ready) * loader.source.epochs.batch_size
        times = loader.times
    worked_s = times.stages["decode"] + times.stages["transform"]
    return LoaderRates(rate, times.samples / max(worked_s, 1e-9))


def measure_step(
    model: pl.LightningModule, data: ShardDataModule, trainer: pl.Trainer, seconds: float
) -> float:
    """Measure a real fit on one batch in memory, which is moved to the device at each step.

    Raises:
        ConfigError: The model takes no step.
        ShardError: The batch cannot be made.
    """
    data.num_workers = 0
    loader = data.loader("train")
    with closing(loader):
        batch = next(iter(loader))
    if (
        trainer.strategy.root_device.type == "cuda"
    ):  # copies from page-locked memory are the fastest
        batch = tree_map_only(torch.Tensor, torch.Tensor.pin_memory, batch)
    watch = _StopWatch(seconds)
    cast("Any", trainer).callbacks = [watch]
    again: Any = cast("Any", DataLoader)([batch] * len(loader), None, collate_fn=_as_it_is)
    cast("Any", data).train_dataloader = lambda: again
    trainer.fit(model, datamodule=data)
    return watch.steps_per_s * loader.source.epochs.batch_size


def measure_webdataset(data: ShardDataModule, num_workers: int, seconds: float) -> float | None:
    """Measure webdataset's own pipeline on the same shards, with the same fields and transforms.

    None for a mixture, for joined fields and for remote shards, which it does not read alike.
    """
    source = data.source("train")
    if not isinstance(source, IndexedSource | StreamSource):
        return None
    urls, is_joined = source.index.urls, any(field.is_joined for field in source.fields)
    if is_joined or not all(map(is_local, urls)):
        return None
    size = source.epochs.batch_size
    pipeline = cast("Any", DataPipeline)(
        ResampledShards(urls, deterministic=True),
        tarfile_to_samples(),
        shuffle(1000),
        *_plain_stages(source),
        batched(size, partial(_plain_batch, source), partial=False),
    )
    batches: Any = WebLoader(pipeline, batch_size=None, num_workers=num_workers)
    return _rate_of(iter(batches), seconds, 2 * num_workers) * size


def advise(loader: Mapping[int, float], step: float) -> Advice:
    """The fewest workers that suffice, and which side is the limit.

    Args:
        loader: Rates of the loader by its number of workers.
        step: The rate of the training step.

    >>> print(advise({0: 90.0, 2: 210.0, 4: 400.0}, 200.0).sentence)
    the training step is the limit with 200 samples/s: 2 workers make 210
    >>> print(advise({0: 90.0, 2: 170.0, 4: 172.0}, 200.0).sentence)
    the loader is the limit: 2 workers make 170 samples/s, and the training step could take 200
    """
    wanted = min(max(loader.values()) * GOOD_ENOUGH, step)
    number = min(number for number, rate in loader.items() if rate >= wanted)
    made = f"{count_of(number, 'worker')} make {rate_text(loader[number])}"
    if loader[number] >= step:
        said = f"the training step is the limit with {rate_text(step)} samples/s: {made}"
    else:
        said = f"the loader is the limit: {made} samples/s, and the training step could take "
        said += rate_text(step)
    return Advice(number, said)


def _as_it_is(batch: object) -> object:
    return batch


def _rate_of(batches: Iterator[object], seconds: float, ready: int) -> float:
    """Batches per second, after the first one and those that workers have `ready`."""
    for _ in islice(batches, 1 + ready):
        pass
    number, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        next(batches)
        number += 1
    return number / passed


class _StopWatch(pl.Callback):
    """Ends a fit after some seconds, and keeps its rate."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._steps, self._begin, self._rate = seconds, -_WARM_UP, 0.0, 0.0

    @property
    def steps_per_s(self) -> float:
        """The rate that was measured."""
        if not self._rate:
            raise ConfigError("the fit ended before its first step: has the model training_step?")
        return self._rate

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let schedulers do without the metric of a validation."""
        for config in trainer.lr_scheduler_configs:
            config.strict = False

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object, **__: object) -> None:
        """Begin after the warm-up, and end when the time is over and the device is done."""
        self._steps += 1
        if self._steps and time.perf_counter() - self._begin < self._seconds:
            return
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)
        if self._steps > 0:
            self._rate = self._steps / (time.perf_counter() - self._begin)
            trainer.should_stop = True
        elif self._steps == 0:
            self._begin = time.perf_counter()


def _plain_stages(source: IndexedSource | StreamSource) -> list[Any]:
    """Stages that make samples of members as the source does."""
    steps, seeds = (source.transforms, source.sample_transforms), SampleSeeds(source.seed, 0)
    fields = with_arrays(source.fields, *steps, plain=False)
    clock, optional = StageClock(), optional_names(fields)
    transforms = SampleTransforms(steps[0], seeds, clock, steps[1], own_decoders(fields), optional)
    decode = DecodeFields(fields, _raise, clock, transforms.seed_decoders)
    return [decode, ApplyTransforms(transforms, 0, 1, _raise)]


def _raise(_: Sample, error: SampleError) -> None:
    raise error


def _plain_batch(source: IndexedSource | StreamSource, samples: list[Sample]) -> dict[str, Any]:
    """A batch as the source makes it; webdataset's samples have no ids."""
    layouts = layouts_of(source.transforms, optional_names(source.fields))
    numbered = [sample | {"__id__": (0, 0)} for sample in samples]
    return collate(numbered, [field.name for field in source.fields], (), layouts=layouts)
