"""Who waits for whom: what the loader could give against what the trainer could take."""

import time
from dataclasses import astuple, dataclass
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_shards.loader import ShardLoader
from lightning_shards.progress import logger_step, should_log, train_loaders


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums over some steps, of one rank or of all.

    Attributes:
        samples: samples trained.
        wall_s: seconds that it took, without validation and without the start of workers.
        wait_s: seconds of these that the trainer waited inside the loader's `next()`.
        produce_s: seconds that workers spent on these samples, summed over workers.
    """

    samples: float = 0.0
    wall_s: float = 0.0
    wait_s: float = 0.0
    produce_s: float = 0.0

    def since(self, earlier: "Measured") -> "Measured":
        """What was added since an earlier measurement."""
        pairs = zip(astuple(self), astuple(earlier), strict=True)
        return Measured(*(now - before for now, before in pairs))


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates of the whole job, in samples per second over all ranks.

    Attributes:
        measured: sums of one rank, or the mean of all ranks.
        num_workers: workers of a rank that make batches side by side.
        world_size: number of ranks.
    """

    measured: Measured
    num_workers: int
    world_size: int

    @property
    def trained(self) -> float:
        """What was trained."""
        return self.measured.samples * self.world_size / max(self.measured.wall_s, 1e-9)

    @property
    def loader(self) -> float:
        """What the workers could make, were nobody slower than they are."""
        per_worker = self.measured.samples / max(self.measured.produce_s, 1e-9)
        return per_worker * self.num_workers * self.world_size

    @property
    def trainer(self) -> float:
        """What the trainer could take, did it never wait."""
        busy_s = self.measured.wall_s - self.measured.wait_s
        return self.measured.samples * self.world_size / max(busy_s, 1e-9)

    @property
    def wait_fraction(self) -> float:
        """Share of the time that the trainer waited for data, 0 to 1."""
        return self.measured.wait_s / max(self.measured.wall_s, 1e-9)

    def metrics(self) -> dict[str, float]:
        """The figures under the names that loggers show."""
        return {
            "data/samples_per_s": self.trained,
            "data/loader_samples_per_s": self.loader,
            "data/trainer_samples_per_s": self.trainer,
            "data/wait_fraction": self.wait_fraction,
        }

    def verdict(self) -> str:
        """One line: which side is slower, by how much, and the figures behind it."""
        ratio = self.trainer / max(self.loader, 1e-9)
        if ratio > 1:
            side = f"loader-bound: the trainer could take {ratio:.1f}x what the loader gives"
        else:
            side = f"trainer-bound: the loader could give {1 / ratio:.1f}x what the trainer takes"
        return (
            f"data throughput: {side} (trained {self.trained:,.0f} samples/s, loader alone "
            f"{self.loader:,.0f}, trainer alone {self.trainer:,.0f}, waited for data "
            f"{self.wait_fraction:.1%} of the time)"
        )


class DataThroughputMonitor(pl.Callback):
    """Logs the throughput of loader and trainer, and ends a fit with a one-line verdict.

    At the loggers' own cadence it logs `data/samples_per_s` (trained, over all ranks),
    `data/loader_samples_per_s` (what the workers could make), `data/trainer_samples_per_s` (what
    the model could take) and `data/wait_fraction`, of rank 0 since the last log; ranks are in
    lockstep.

    Waiting is measured inside the loader's `next()`, on the CPU: beside an accelerator that still
    has work queued it is an upper bound. Validation and the start of workers are left out.
    """

    def __init__(self) -> None:
        self._loader: ShardLoader | None = None
        self._began: Measured | None = None
        self._logged: Measured | None = None
        self._left_out_s = 0.0
        self._validation_began = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the loader to watch."""
        ours = [loader for loader in train_loaders(trainer) if isinstance(loader, ShardLoader)]
        self._loader = ours[0] if len(ours) == 1 else None
        self._began = self._logged = None
        self._left_out_s = 0.0

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
        if self._began is None:
            self._began = self._logged = self._measure(self._loader)
        elif should_log(trainer) and trainer.is_global_zero:
            self._log(trainer, self._loader)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._validation_began = time.perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the clock go on."""
        self._left_out_s += time.perf_counter() - self._validation_began

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the verdict over the whole run and all ranks; every rank gets here."""
        if self._loader is None or self._began is None:
            return
        own = self._measure(self._loader).since(self._began)
        sums = torch.tensor(astuple(own), dtype=torch.float32, device=trainer.strategy.root_device)
        mean = cast("Any", trainer.strategy).reduce(sums, reduce_op="mean")
        measured = Measured(*mean.tolist())
        if measured.samples:
            rank_zero_info(self._throughput(measured, self._loader).verdict())

    def _log(self, trainer: pl.Trainer, loader: ShardLoader) -> None:
        now = self._measure(loader)
        assert self._logged is not None  # noqa: S101 set with the first batch
        throughput = self._throughput(now.since(self._logged), loader)
        self._logged = now
        for logger in trainer.loggers:
            logger.log_metrics(throughput.metrics(), step=logger_step(trainer))

    def _measure(self, loader: ShardLoader) -> Measured:
        times = loader.times
        return Measured(
            samples=times.samples,
            wall_s=time.perf_counter() - self._left_out_s - times.start_s,
            wait_s=times.wait_s,
            produce_s=times.produce_s,
        )

    def _throughput(self, measured: Measured, loader: ShardLoader) -> Throughput:
        return Throughput(measured, loader.pool.num_workers, loader.place.world_size)
