"""The settings that `bench` tries: kinds and numbers of workers, applied to a data module."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import lightning.pytorch as pl

from lightning_shards.datamodule import ShardDataModule
from lightning_shards.errors import count_of

PoolName = Literal["inline", "threads", "processes", "own"]

_POOLS_BY_COST: tuple[PoolName, ...] = ("inline", "threads", "processes", "own")
_UNKNOWN = -1
"""The number of workers of a data module whose number cannot be set."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The workers that make batches.

    Attributes:
        pool: Kind of workers; `inline` if and only if there are no workers; `own` for the workers
            of a data module that is not ours.
        num_workers: Workers of the rank.
        threads_per_worker: Threads in each worker process.
    """

    pool: PoolName
    num_workers: int
    threads_per_worker: int = 1

    @property
    def name(self) -> str:
        """The setting as text, like `2 processes x 3 threads`."""
        if self.pool == "inline":
            return "0 (inline)"
        if self.num_workers == _UNKNOWN:
            return "as it is"
        kind = {"threads": "thread", "processes": "process", "own": "worker"}[self.pool]
        times = "" if self.threads_per_worker == 1 else f" x {self.threads_per_worker} threads"
        return f"{count_of(self.num_workers, kind)}{times}"

    @property
    def cost(self) -> tuple[int, int, int]:
        """Sort key by use of the machine: threads at work, kind of workers, number of workers."""
        slots = self.num_workers * self.threads_per_worker
        return slots, _POOLS_BY_COST.index(self.pool), self.num_workers


def current_setting(data: pl.LightningDataModule) -> Setting:
    """The current setting of a data module."""
    if not isinstance(data, ShardDataModule):
        num_workers = getattr(data, "num_workers", _UNKNOWN)
        return Setting("own", num_workers if type(num_workers) is int else _UNKNOWN)
    config = data.loader_config
    if data.num_workers == 0 or config.pool == "inline":
        return Setting("inline", 0)
    return Setting(config.pool, data.num_workers, config.threads_per_worker)


def apply_setting(data: pl.LightningDataModule, setting: Setting) -> None:
    """Make the data module's next loaders use this setting."""
    if isinstance(data, ShardDataModule):
        assert setting.pool != "own"  # list_settings made it
        pool, threads = setting.pool, setting.threads_per_worker
        config = replace(data.loader_config, pool=pool, threads_per_worker=threads)
        data.num_workers, data.loader_config = setting.num_workers, config
    elif setting.num_workers != _UNKNOWN:
        cast("Any", data).num_workers = setting.num_workers


def list_settings(
    now: Setting,
    num_workers: Sequence[int],
    pools: Sequence[PoolName],
    threads_per_worker: Sequence[int],
) -> list[Setting]:
    """The settings to try, each once.

    Args:
        now: The configured setting.
        num_workers: Numbers of workers to try.
        pools: `processes`, `threads`; ignored for a data module that is not ours.
        threads_per_worker: Threads of each process to try; empty: as configured.
    """
    if now.num_workers == _UNKNOWN:
        return [now]
    if now.pool == "own":
        return [Setting("own", number) for number in dict.fromkeys(num_workers)]
    settings: list[Setting] = []
    for number in num_workers:
        for pool in pools if number else ("inline",):
            is_processes = pool == "processes"
            threads = threads_per_worker or (now.threads_per_worker,)
            settings += [
                Setting(pool, number, count) for count in (threads if is_processes else (1,))
            ]
    return list(dict.fromkeys(settings))
