"""The throughput callback: how fast the loader and the trainer could be, and which one waits."""

import sys
import time

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_shards.callbacks.set_epoch import require_own_places
from lightning_shards.collectives import gather
from lightning_shards.loader import ShardLoader
from lightning_shards.measure.rates import (
    RunContext,
    Throughput,
    TimeTotals,
    find_slow_rank,
    in_lockstep,
)
from lightning_shards.measure.report import component_metrics, write_report
from lightning_shards.progress import logger_step, should_log, train_loaders
from lightning_shards.system.process import num_cpus


class DataThroughputMonitor(pl.Callback):
    """Logs the throughput of loader and trainer, and ends a fit with one line on what to change.

    It logs whenever the loggers do, for rank 0 since the last log: `data/samples_per_s` (trained,
    over all ranks), `data/loader_samples_per_s` (what the workers could make),
    `data/trainer_samples_per_s` (what the model could take), `data/wait_fraction`,
    `data/transfer_fraction` (moving batches to the device) and the share of each stage in the
    workers' time, such as `data/loader_read_fraction` (`samples.stage_clock.STAGES`). Where shards
    are remote, it also logs `data/fetched_bytes_per_s`, `data/requests_per_s`,
    `data/repeated_requests` and `data/cached_fraction`: the share of the bytes read that did not
    have to be fetched. Of a mixture it also logs `data/component/<name>/samples` and
    `data/component/<name>/passes`: how far the run has come in each component since its beginning,
    over all ranks. A fit ends with a line on the whole run and all ranks: the slower side, and the
    one change to make. Its figures are logged too, as `data/run/...`. A fit that is ended with
    Ctrl-C reports on rank 0 alone. After `reload_dataloaders_every_n_epochs` has made another
    loader, all figures begin again.

    Waiting is measured inside the loader's `next()`, by the trainer's thread. On a CPU that is
    exact. A CUDA device may still have queued work to do, which events show (they are queried,
    never waited for): `data/starved_fraction` counts only waits at whose end it had none. On other
    devices the wait is an upper bound of the time lost. Validation and the start of workers are
    left out.

    Ranks are in lockstep by the gradients that they exchange: all ranks wait for a late rank inside
    their backward pass, never inside their loaders. So the rank with the largest wait is the one
    whose loader holds up all others, and the job's wait is that rank's wait. A rank is named if it
    costs the others more than 5 % of the time. A slow model on one rank and delays that change from
    rank to rank cannot be seen and count as the trainer's time. All this costs one collective, at
    the end.
    """

    def __init__(self) -> None:
        self._watch(None, torch.device("cpu"))

    def _watch(self, loader: ShardLoader | None, device: torch.device) -> None:
        """Begin to measure this loader, if there is one, with nothing measured before."""
        self._loader = loader
        # The trainer's thread runs ahead of a CUDA device, so while it waits for a batch, the
        # device may still be at work. This event behind the last kernel of a step shows it.
        self._step_end = torch.cuda.Event() if device.type == "cuda" else None
        self._starved_s = 0.0
        self._began: TimeTotals | None = None
        self._logged = TimeTotals()
        self._waited_s = 0.0 if loader is None else loader.times.wait_s
        self._left_out_s = self._transfer_s = 0.0
        self._stopped_at: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the loader to watch."""
        require_own_places(trainer, train_loaders(trainer))
        self._watch(_only_shard_loader(trainer), trainer.strategy.root_device)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin from the start if `reload_dataloaders_every_n_epochs` has made another loader."""
        loader = _only_shard_loader(trainer)
        if loader is not self._loader:
            self._watch(loader, trainer.strategy.root_device)

    def on_train_batch_start(self, *_: object, **__: object) -> None:
        """Count the wait for this batch."""
        if self._loader is None:
            return
        times = self._loader.times
        self._transfer_s += time.perf_counter() - times.handed_at
        # a device that ran dry just before the batch came counts as idle for the whole wait
        if self._step_end is None or self._step_end.query():
            self._starved_s += times.wait_s - self._waited_s

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object, **__: object) -> None:
        """Begin to measure after the first batch; log when the loggers are due."""
        if self._loader is None:
            return
        self._waited_s = self._loader.times.wait_s
        if self._step_end is not None:
            self._step_end.record()
        if self._began is None:
            self._began = self._logged = self._measure(self._loader)
        elif trainer.loggers and should_log(trainer) and trainer.is_global_zero:
            self._log(trainer, self._loader)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._stopped_at = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the clock go on."""
        if self._stopped_at is not None:
            self._left_out_s += time.perf_counter() - self._stopped_at
            self._stopped_at = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report on the whole run and all ranks; every rank gets here."""
        loader, began, self._loader = self._loader, self._began, None
        if loader is None or began is None:
            return
        self._report(trainer, loader, gather(self._measure(loader).since(began)))

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Report when the user ends a fit; other ranks may not answer, so they are left out."""
        loader, began, self._loader = self._loader, self._began, None
        if loader is not None and began and isinstance(exception, KeyboardInterrupt):
            self._report(trainer, loader, [self._measure(loader).since(began)])

    def _report(self, trainer: pl.Trainer, loader: ShardLoader, ranks: list[TimeTotals]) -> None:
        if not trainer.is_global_zero or not ranks[0].batches:
            return
        context, slow_rank = _circumstances(trainer, loader), find_slow_rank(ranks)
        rank_zero_info(write_report(ranks, context))
        metrics = Throughput(in_lockstep(ranks), context).metrics("data/run/")
        if slow_rank is not None:
            metrics["data/run/slowest_rank"] = slow_rank
        _tell_loggers(trainer, metrics)

    def _log(self, trainer: pl.Trainer, loader: ShardLoader) -> None:
        now = self._measure(loader)
        window, self._logged = now.since(self._logged), now
        metrics = Throughput(window, _circumstances(trainer, loader)).metrics()
        _tell_loggers(trainer, metrics | component_metrics(loader))

    def _measure(self, loader: ShardLoader) -> TimeTotals:
        times = loader.times
        now_s = time.perf_counter() if self._stopped_at is None else self._stopped_at
        wall_s = now_s - self._left_out_s - times.start_s
        # in the order of its fields
        trained = (times.batches, times.samples, wall_s, times.wait_s, self._starved_s)
        made = (times.produce_s, self._transfer_s, *times.stages.values())
        return TimeTotals._make((*trained, *made, *times.fetched[:4]))


def _tell_loggers(trainer: pl.Trainer, metrics: dict[str, float]) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=logger_step(trainer))


def _circumstances(trainer: pl.Trainer, loader: ShardLoader) -> RunContext:
    pool = loader.pool.describe()
    cores = max(1, num_cpus() // trainer.num_devices)
    return RunContext(
        num_workers=pool.num_workers,
        cores=sys.maxsize if pool.kind == "ray" else cores,  # a cluster may get more machines
        world_size=loader.place.world_size,
        device=trainer.strategy.root_device.type,
        threads_per_worker=pool.threads,
    )


def _only_shard_loader(trainer: pl.Trainer) -> ShardLoader | None:
    """The loader to watch; None unless just one, among others or not, is a `ShardLoader`."""
    ours = [loader for loader in train_loaders(trainer) if isinstance(loader, ShardLoader)]
    return ours[0] if len(ours) == 1 else None
