"""How batches are made: the settings that change no batch."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from lightning_shards.config.parsing import with_torch_words
from lightning_shards.errors import (
    ConfigError,
    path_as_text,
    require_at_least,
    require_choice,
    require_mapping,
    require_text,
)
from lightning_shards.remote.backend import require_store_options
from lightning_shards.shards.scheme_table import RANGED_SCHEMES, is_further

_MOST = sys.float_info.max


@dataclass(frozen=True)
class RayConfig:
    """Where the actors of ``pool: ray`` run.

    Args:
        address: The cluster: ``auto`` joins the one of ``RAY_ADDRESS`` or of this machine, and
            starts one here if there is none and the job has one node; ``local`` starts one, which
            ends with the fit; ``host:port`` joins that one.
        cpus_per_worker: CPUs that each actor asks of the cluster; those of evaluation ask for none.
        placement: ``SPREAD`` the actors of a rank over the nodes, or ``PACK`` them on one.
        share: A name. Trainers on one cluster that give the same name, with equal data, settings
            and code, take their batches from the same actors, which make each batch once. The
            actors of a rank keep up to ``prefetch_bytes`` of batches for trainers that come later.
    """

    address: str = "auto"
    cpus_per_worker: float = 1.0
    placement: Literal["SPREAD", "PACK"] = "SPREAD"
    share: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that cannot work.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        require_text("ray.address", self.address)
        if self.address.startswith("ray://"):
            raise ConfigError(
                f"ray.address={self.address!r} would send each byte through Ray's client proxy; "
                "start the trainer on a node of the cluster, and take 'auto' or 'host:port'"
            )
        cpus = self.cpus_per_worker
        if type(cpus) not in {int, float} or not 0 <= cpus <= _MOST:
            raise ConfigError(f"ray.cpus_per_worker must be a number from 0, got {cpus!r}")
        require_choice("ray.placement", self.placement, ("SPREAD", "PACK"))
        if self.share is not None:
            require_text("ray.share", self.share)


@with_torch_words
@dataclass(frozen=True)
class LoaderConfig:
    """How batches are made; no setting here changes which batches they are.

    Args:
        pool: What workers are: ``processes``, ``threads`` of the trainer's own process, ``ray``
            for actors of a Ray cluster, or ``inline``, the trainer's own thread; ``num_workers=0``
            is always inline. Threads copy nothing and start at once; a training loop of much Python
            wants processes. For tiny samples ``num_workers=0`` is faster than threads.
        threads_per_worker: Threads in each worker process. Threads need transforms that draw from
            the ``rng`` they are given.
        prefetch_factor: Batches that each worker keeps ready; of small ones, messages of several.
        prefetch_bytes: Most bytes that the workers of a rank keep ready: fewer batches than
            ``prefetch_factor`` where they are large, but at least one batch or message (4 MiB) of
            each worker.
        multiprocessing_context: How worker processes start. A fork of a rank with gloo and autograd
            threads can deadlock.
        pin_memory: Whether batches of worker processes are copied into page-locked memory.
            Default: when the accelerator is CUDA. Other pools pin nothing.
        worker_timeout_s: Seconds that the trainer waits for a batch, the first one and the start
            of the workers included. Then worker processes are ended, and the error says which one
            stood still in which stage; threads and ``inline`` cannot be ended, and a warning shows
            where they are. 0: never.
        cache_dir: Where counts, member tables, pieces of remote shards, joined values and what
            filters leave are kept; best on a disk of this machine. Default:
            ~/.cache/lightning_shards.
        storage_options: How the stores of remote shards are reached, by scheme: ``endpoint``,
            ``region``, ``anonymous``, ``profile`` and others. No secrets: these stay where the
            tools of each provider keep them.
        connections: Requests for remote shards that a node has under way at most, over all of its
            ranks and workers.
        cache_gib: GiB that the pieces of remote shards may take in ``cache_dir``, of all runs on a
            node together. Default: three quarters of the free disk, 50 GiB left.
        ray: Where the actors of ``pool: ray`` run.
    """

    pool: Literal["processes", "threads", "inline", "ray"] = "processes"
    threads_per_worker: int = 1
    prefetch_factor: int = 2
    prefetch_bytes: int = 2**30
    multiprocessing_context: Literal["forkserver", "spawn", "fork"] = "forkserver"
    pin_memory: bool | None = None
    worker_timeout_s: float = 300.0
    cache_dir: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    connections: int = 64
    cache_gib: float | None = None
    ray: RayConfig = RayConfig()

    def __post_init__(self) -> None:
        """Refuse settings that cannot work.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        require_choice("pool", self.pool, ("processes", "threads", "inline", "ray"))
        require_at_least("threads_per_worker", self.threads_per_worker, 1)
        if self.threads_per_worker > 1 and self.pool != "processes":
            raise ConfigError(
                f"threads_per_worker={self.threads_per_worker} goes with pool='processes', not "
                f"{self.pool!r}; leave it at 1 and set num_workers"
            )
        require_at_least("prefetch_factor", self.prefetch_factor, 1)
        require_at_least("prefetch_bytes", self.prefetch_bytes, 1)
        timeout_s = self.worker_timeout_s
        if type(timeout_s) not in {int, float} or not 0 <= timeout_s <= _MOST:
            raise ConfigError(
                f"worker_timeout_s must be a number of seconds, 0 for no limit, got {timeout_s!r}"
            )
        require_choice(
            "multiprocessing_context", self.multiprocessing_context, ("forkserver", "spawn", "fork")
        )
        self._require_ray_alone()
        require_at_least("connections", self.connections, 1)
        cache_gib = self.cache_gib
        is_number = type(cache_gib) in {int, float, type(None)}
        if not is_number or not 0 < (1 if cache_gib is None else cache_gib) <= _MOST:
            raise ConfigError(f"cache_gib must be a number above 0, or left out, got {cache_gib!r}")
        require_choice("pin_memory", self.pin_memory, (None, True, False))
        if self.pin_memory and self.pool != "processes":
            raise ConfigError(
                f"pin_memory=True goes with pool='processes', not {self.pool!r}; leave it out"
            )
        object.__setattr__(self, "cache_dir", path_as_text(self.cache_dir))
        if self.cache_dir is not None:
            require_text("cache_dir", self.cache_dir)
            if not self.cache_dir.startswith("~"):  # the run may change its working directory
                object.__setattr__(self, "cache_dir", str(Path(self.cache_dir).absolute()))
        self._require_storage_options()

    def _require_ray_alone(self) -> None:
        """Refuse settings of worker processes beside actors, and settings of actors beside others.

        `threads_per_worker` and `pin_memory` are refused beside any other pool than processes.
        """
        if not isinstance(cast("object", self.ray), RayConfig):
            raise ConfigError(f"ray must be a RayConfig, got {self.ray!r}")
        if self.pool != "ray" and self.ray != RayConfig():
            raise ConfigError(f"{self.ray} goes with pool='ray', not {self.pool!r}; leave it out")
        if self.pool == "ray" and self.multiprocessing_context != "forkserver":
            raise ConfigError(
                f"multiprocessing_context={self.multiprocessing_context!r} goes with "
                "pool='processes', not 'ray'; leave it out"
            )

    def _require_storage_options(self) -> None:
        require_mapping("storage_options", self.storage_options, "{s3: {...}}")
        for scheme, options in self.storage_options.items():
            if scheme not in RANGED_SCHEMES and not is_further(scheme):
                raise ConfigError(
                    f"storage_options has {scheme!r}; its keys are schemes: "
                    f"{', '.join(RANGED_SCHEMES)}, and what fsspec reads"
                )
            named = cast("Mapping[str, Any]", options)
            require_mapping(f"storage_options of {scheme}", named, "{endpoint: ...}")
            require_store_options(scheme, named)

    def needs_server(self, num_workers: int) -> bool:
        """Whether so many workers are processes that come from a fork server."""
        is_forked = self.multiprocessing_context == "forkserver"
        return num_workers > 0 and self.pool == "processes" and is_forked
