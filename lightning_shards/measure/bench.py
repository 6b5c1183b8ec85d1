"""What `bench` measures: transforms, the loader and a training step.

Each measurement begins after the first batches: by then workers have started, the batches that they
kept ready are used up, and kernels are chosen. All rates are samples per second of one rank.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from itertools import chain, islice, repeat
from typing import Any, Final, cast

import lightning.pytorch as pl
import torch
from torch.utils._pytree import tree_map_only

from lightning_shards.datamodule import ShardDataModule

GOOD_ENOUGH: Final = 0.95
"""Fewer workers are taken from this share of the best rate on: runs differ by as much."""

_WARM_UP: Final = 3
"""Steps of a fit that are not measured."""


def measure_loader(data: ShardDataModule, num_workers: int, seconds: float) -> tuple[float, float]:
    """Measure the train loader with so many workers, from epoch to epoch without a break.

    Returns:
        The rate of the loader alone, and that of decoding and transforms in one thread.

    Raises:
        ShardError: No batch can be made, or not with so many workers.
    """
    data.num_workers = num_workers
    loader = data.loader("train")
    with closing(loader):
        pool = loader.pool.describe()
        ready = pool.num_workers * pool.prefetch_factor
        batches = chain.from_iterable(repeat(loader))
        for _ in islice(batches, 1 + ready):
            pass
        number, begin = 0, time.perf_counter()
        while (passed := time.perf_counter() - begin) < seconds:
            next(batches)
            number += 1
        rate, times = number * loader.source.epochs.batch_size / passed, loader.times
    worked_s = times.stages["decode"] + times.stages["transform"]
    return rate, times.samples / max(worked_s, 1e-9)


def measure_step(
    model: pl.LightningModule, data: ShardDataModule, trainer: pl.Trainer, seconds: float
) -> float:
    """Measure a real fit on one batch in memory, which is moved to the device at each step.

    Raises:
        ShardError: The batch cannot be made.
    """
    data.num_workers = int(data.loader_config.pool == "ray")
    loader = data.loader("train")
    with closing(loader):
        batch = next(iter(loader))
    if trainer.strategy.root_device.type == "cuda":
        # Copies from page-locked memory are the fastest.
        batch = tree_map_only(torch.Tensor, torch.Tensor.pin_memory, batch)
    repeated = _RepeatedBatch(batch, seconds, trainer.strategy.root_device)
    cast("Any", data).train_dataloader = lambda: repeated
    with suppress(_MeasuredError):
        trainer.fit(model, datamodule=data)
    return repeated.steps_per_s * loader.source.epochs.batch_size


def enough_workers(loader: Mapping[int, float], step: float) -> int:
    """The fewest workers that keep the training step busy, or make nearly the most of all.

    Args:
        loader: Rates of the loader by its number of workers.
        step: The rate of the training step.

    >>> enough_workers({0: 90.0, 2: 210.0, 4: 400.0}, 200.0)
    2
    >>> enough_workers({0: 90.0, 2: 170.0, 4: 172.0}, 200.0)
    2
    """
    wanted = min(max(loader.values()) * GOOD_ENOUGH, step)
    return min(number for number, rate in loader.items() if rate >= wanted)


class _MeasuredError(Exception):
    """Ends a fit that has been measured, before hooks of an epoch's end ask for a validation."""


class _RepeatedBatch:
    """A loader of one batch, which ends its fit after some seconds, and keeps the rate."""

    def __init__(self, batch: object, seconds: float, device: torch.device) -> None:
        self._batch, self._seconds, self._device = batch, seconds, device
        self.steps_per_s = 0.0

    def __len__(self) -> int:
        """As many as are never reached; schedulers need the number of steps."""
        return 10**9

    def __iter__(self) -> Iterator[object]:
        yield from repeat(self._batch, _WARM_UP)
        begin, steps = self._now(), 0
        while time.perf_counter() - begin < self._seconds:
            yield self._batch
            steps += 1
        self.steps_per_s = steps / (self._now() - begin)
        raise _MeasuredError

    def _now(self) -> float:
        """The time at which the device has done all that it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
