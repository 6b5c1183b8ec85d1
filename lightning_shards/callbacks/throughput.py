"""The throughput callback: how fast the loader and the trainer could be, and which one waits."""

import time
from dataclasses import astuple, replace
from functools import reduce
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_shards.callbacks.set_epoch import require_own_places
from lightning_shards.loader import ShardLoader
from lightning_shards.measure.rates import (
    HostClock,
    TimeTotals,
    find_steady_slow_rank,
    in_lockstep,
    make_clock,
)
from lightning_shards.measure.report import (
    MixtureProgress,
    RunContext,
    fetched_text,
    require_plot,
    save_plot,
    write_report,
)
from lightning_shards.plan.place import Cursor
from lightning_shards.progress import fit_loaders, logger_step, should_log, train_loaders
from lightning_shards.samples.stage_clock import LoaderTimes
from lightning_shards.shards.storage.protocol import NO_FETCHES, FetchTotals
from lightning_shards.shards.storage.remote import MakeRemoteStorage
from lightning_shards.state import read_count
from lightning_shards.system.process import num_cpus


class DataThroughputMonitor(pl.Callback):
    """Logs the throughput of loader and trainer, and ends a fit with the one change to make.

    It logs whenever the loggers do, for rank 0 since the last log: `data/samples_per_s` (trained,
    over all ranks), `data/loader_samples_per_s` (what the workers could make),
    `data/trainer_samples_per_s` (what the model could take), `data/wait_fraction`,
    `data/transfer_fraction` (moving batches to the device) and the share of each stage in the
    workers' time, such as `data/loader_read_fraction` (`samples.stage_clock.STAGES`). Where shards
    are remote, it also logs `data/fetched_bytes_per_s`, `data/requests_per_s`,
    `data/repeated_requests` and `data/cached_fraction`: the share of the bytes read that did not
    have to be fetched. Of a mixture it also logs `data/component/<name>/samples` and
    `data/component/<name>/passes`: how far the run has come in each component since its beginning,
    over all ranks. A fit ends with a table of the whole run and its last epoch over all ranks: the
    bottleneck, the headroom, and the one change to make. Its figures are logged too, as
    `data/run/...`. One more line says what was fetched from afar in the whole fit, for validation
    too. A fit that is ended with Ctrl-C reports on rank 0 alone.

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

    Args:
        plot: A .png, .pdf or .svg file for a plot of step time and waiting time over the run; needs
            the extra `plot`.

    Raises:
        ConfigError: The plot cannot be made.
    """

    def __init__(self, plot: str | None = None) -> None:
        if plot is not None:
            require_plot(plot)
        self._plot = plot
        self._loader: ShardLoader | None = None
        self._mixture: MixtureProgress | None = None
        self._all_times: dict[int, LoaderTimes] = {}
        self._fetched_before = NO_FETCHES
        self._forget()

    def _forget(self) -> None:
        self._clock = HostClock()
        self._began: TimeTotals | None = None
        self._epoch_began = self._logged = TimeTotals()
        self._of_earlier_loaders = TimeTotals()
        self._windows: list[TimeTotals] = []
        self._waited_s = self._left_out_s = self._transfer_s = 0.0
        self._stopped_at: float | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget what an earlier fit fetched with the same loaders."""
        self._all_times = {}
        self._fetched_before = self._fetched_by_all(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the loader to watch."""
        loaders = train_loaders(trainer)
        require_own_places(trainer, loaders)
        self._note_loaders(trainer)
        self._watch(trainer, _only_shard_loader(loaders))

    def _watch(self, trainer: pl.Trainer, loader: ShardLoader | None) -> None:
        """Begin to measure this loader, if there is one, with nothing measured before."""
        self._forget()
        self._loader = loader
        self._mixture = None
        if loader is not None:
            self._mixture = MixtureProgress.of(loader.source)
            self._clock = make_clock(trainer.strategy.root_device)
            self._waited_s = loader.times.wait_s

    def _go_on_with(self, loader: ShardLoader, before: ShardLoader) -> None:
        """Measure a loader that has replaced another one in the same fit."""
        of_before = _counted(before.times).since(_counted(loader.times))
        self._of_earlier_loaders = self._of_earlier_loaders.plus(of_before)
        self._loader, self._mixture = loader, MixtureProgress.of(loader.source)
        self._waited_s = loader.times.wait_s

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin the figures of a new epoch: the report has those of the last one.

        `reload_dataloaders_every_n_epochs` may have made another loader for it.
        """
        self._note_loaders(trainer)
        loader, before = _only_shard_loader(train_loaders(trainer)), self._loader
        if loader is not None and before is not None and loader is not before:
            self._go_on_with(loader, before)
        elif loader is not before:
            self._watch(trainer, loader)
        if loader is not None and self._began is not None:
            self._epoch_began = self._measure(loader)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Count the wait for this batch."""
        if self._loader is None:
            return
        times = self._loader.times
        self._transfer_s += time.perf_counter() - times.handed_at
        self._clock.batch_came(times.wait_s - self._waited_s)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Begin to measure after the first batch; log when the loggers are due."""
        if self._loader is None:
            return
        self._waited_s = self._loader.times.wait_s
        self._clock.step_ended()
        if self._began is None:
            self._began = self._epoch_began = self._logged = self._measure(self._loader)
        elif (trainer.loggers or self._plot) and should_log(trainer) and trainer.is_global_zero:
            self._log(trainer, self._loader)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._note_loaders(trainer)
        self._stopped_at = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the clock go on."""
        if self._stopped_at is not None:
            self._left_out_s += time.perf_counter() - self._stopped_at
            self._stopped_at = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report on the whole run and all ranks; every rank gets here."""
        loader, self._loader = self._loader, None
        if loader is None or self._began is None:
            return
        now = self._measure(loader)
        totals = [astuple(now.since(earlier)) for earlier in (self._began, self._epoch_began)]
        totals.append(astuple(self._fetched_in(trainer)))
        # sums: (whole run, last epoch or what was fetched; rank; field of TimeTotals). Each rank
        # fills its own rows, and all are added, because torch deprecates what Lightning's
        # all_gather calls. MPS has no float64, and torch's default may be float16.
        shape = (len(totals), trainer.world_size, len(totals[0]))
        sums = torch.zeros(shape, dtype=torch.float32, device=trainer.strategy.root_device)
        sums[:, trainer.global_rank] = sums.new_tensor(totals)
        sums = cast("Any", trainer.strategy).reduce(sums, reduce_op="sum")
        run, epoch, fetched = ([TimeTotals(*rank) for rank in span] for span in sums.tolist())
        self._report(trainer, loader, {"whole run": run, "last epoch": epoch}, fetched)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Report when the user ends a fit; other ranks may not answer, so they are left out."""
        loader, self._loader = self._loader, None
        if loader is None or self._began is None:
            return
        if isinstance(exception, KeyboardInterrupt):
            totals = self._measure(loader).since(self._began)
            self._report(trainer, loader, {"whole run": [totals]}, [self._fetched_in(trainer)])

    def _report(
        self,
        trainer: pl.Trainer,
        loader: ShardLoader,
        spans: dict[str, list[TimeTotals]],
        fetched: list[TimeTotals],
    ) -> None:
        run = spans["whole run"]
        if not trainer.is_global_zero or not run[0].batches:
            return
        epoch = spans.get("last epoch", run)
        if epoch == run or not epoch[0].batches:
            spans.pop("last epoch", None)
        context, job = self._circumstances(trainer, loader), in_lockstep(fetched)
        if job.is_fetched:
            context = replace(context, connections=_connections_of(loader))
        rank_zero_info(write_report(spans, context))
        if job.is_fetched:
            rank_zero_info(fetched_text(job))
        metrics = self._metrics(in_lockstep(run), context, "data/run/")
        slow = find_steady_slow_rank(list(spans.values()))
        if slow is not None:
            metrics["data/run/slowest_rank"] = slow.rank
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=logger_step(trainer))
        if self._plot is not None:
            save_plot(self._plot, [*self._windows, self._measure(loader).since(self._logged)])

    def _log(self, trainer: pl.Trainer, loader: ShardLoader) -> None:
        now = self._measure(loader)
        window, self._logged = now.since(self._logged), now
        if self._plot is not None:
            self._windows.append(window)
        metrics = self._metrics(window, self._circumstances(trainer, loader), "data/")
        if self._mixture is not None:
            state = loader.state_dict()
            trained = Cursor(read_count(state, "epoch"), read_count(state, "samples"))
            metrics |= self._mixture.metrics(trained)
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=logger_step(trainer))

    def _metrics(self, totals: TimeTotals, context: RunContext, prefix: str) -> dict[str, float]:
        throughput = context.throughput(totals)
        metrics = throughput.metrics(prefix)
        if context.device == "cuda":
            metrics[f"{prefix}starved_fraction"] = throughput.starved_fraction
        return metrics

    def _fetched_in(self, trainer: pl.Trainer) -> TimeTotals:
        """What this rank has fetched since the fit began."""
        fetched = self._fetched_by_all(trainer).since(self._fetched_before)
        return TimeTotals(**_fetches(fetched))

    def _fetched_by_all(self, trainer: pl.Trainer) -> FetchTotals:
        """What all loaders of a fit have fetched on this rank, those that were replaced, too."""
        self._note_loaders(trainer)
        all_times = self._all_times.values()
        return reduce(FetchTotals.plus, (times.fetched for times in all_times), NO_FETCHES)

    def _note_loaders(self, trainer: pl.Trainer) -> None:
        """Keep the times of the loaders of this fit: Lightning forgets a loader that it reloads."""
        ours = [loader for loader in fit_loaders(trainer) if isinstance(loader, ShardLoader)]
        self._all_times |= {id(loader.times): loader.times for loader in ours}

    def _measure(self, loader: ShardLoader) -> TimeTotals:
        now_s = time.perf_counter() if self._stopped_at is None else self._stopped_at
        of_trainer = TimeTotals(
            wall_s=now_s - self._left_out_s,
            starved_s=self._clock.starved_s,
            transfer_s=self._transfer_s,
        )
        return of_trainer.plus(self._of_earlier_loaders).plus(_counted(loader.times))

    def _circumstances(self, trainer: pl.Trainer, loader: ShardLoader) -> RunContext:
        pool = loader.pool.describe()
        return RunContext(
            num_workers=pool.num_workers,
            cores=max(1, num_cpus() // trainer.num_devices),
            world_size=loader.place.world_size,
            device=trainer.strategy.root_device.type,
            threads_per_worker=pool.threads,
        )


def _only_shard_loader(loaders: list[Any]) -> ShardLoader | None:
    """The loader to watch; None unless just one of these, others or not, is a `ShardLoader`."""
    ours = [loader for loader in loaders if isinstance(loader, ShardLoader)]
    return ours[0] if len(ours) == 1 else None


def _connections_of(loader: ShardLoader) -> int:
    """Requests that a node may have under way; 0 if another storage than ours fetches shards."""
    makers = (loader.source.describe().storages or {}).values()
    ours = [each.settings.connections for each in makers if isinstance(each, MakeRemoteStorage)]
    return max(1, loader.pool.describe().num_workers) * max(ours, default=0)


def _counted(times: LoaderTimes) -> TimeTotals:
    """What a loader has counted; its `wall_s` is what the start of workers takes off the clock."""
    return TimeTotals(
        batches=times.batches,
        samples=times.samples,
        wall_s=-times.start_s,
        wait_s=times.wait_s,
        produce_s=times.produce_s,
        **{f"{stage}_s": seconds for stage, seconds in times.stages.items()},
        **_fetches(times.fetched),
    )


def _fetches(fetched: FetchTotals) -> dict[str, float]:
    """Those of these totals that `TimeTotals` has, too."""
    names = ("requests", "repeated", "fetched_bytes", "read_bytes")
    return {name: getattr(fetched, name) for name in names}
