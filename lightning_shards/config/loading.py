"""How batches are made: the settings that change no batch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning_shards.config.parsing import with_known_names
from lightning_shards.config.settings import put, require_kinds
from lightning_shards.errors import ConfigError, require_mapping
from lightning_shards.shards.scheme_table import require_store_options


@dataclass(frozen=True)
class RayConfig:
    """Where the actors of ``pool: ray`` run.

    Args:
        address: The cluster: ``auto`` joins the one of ``RAY_ADDRESS`` or of this machine, and
            starts one here for a single rank if there is none; ``local`` starts one for a single
            rank, which ends with the program; ``host:port`` joins that one.
        cpus_per_worker: CPUs that each actor asks of the cluster; those of evaluation ask for none.
        placement: ``SPREAD`` the actors of a rank over the nodes, or ``PACK`` them on one.
    """

    address: str = "auto"
    cpus_per_worker: float = 1.0
    placement: Literal["SPREAD", "PACK"] = "SPREAD"

    def __post_init__(self) -> None:
        """Refuse settings that cannot work.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        require_kinds(self, "ray.")
        if self.address.startswith("ray://"):
            raise ConfigError(
                f"ray.address={self.address!r} would send each byte through Ray's client proxy; "
                "start the trainer on a node of the cluster, and take 'auto' or 'host:port'"
            )


@with_known_names
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
            of the workers included. Then the error says which process stood still in which stage,
            or where a thread stands. 0: there is no limit, as for ``inline``.
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
        require_kinds(self)
        for name, pool, is_set in (
            ("threads_per_worker", "processes", self.threads_per_worker > 1),
            ("pin_memory", "processes", self.pin_memory),
            ("ray", "ray", self.ray != RayConfig()),
        ):
            if is_set and self.pool != pool:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} goes with pool={pool!r}, not {self.pool!r}; "
                    "leave it out"
                )
        if self.cache_gib == 0:
            raise ConfigError("cache_gib must be a number above 0, or left out, got 0")
        if self.cache_dir and not self.cache_dir.startswith("~"):  # the run may change its folder
            put(self, cache_dir=str(Path(self.cache_dir).absolute()))
        for scheme, options in self.storage_options.items():
            require_mapping(f"storage_options of {scheme}", options, "{endpoint: ...}")
            require_store_options(scheme, options)

    def needs_server(self, num_workers: int) -> bool:
        """Whether so many workers are processes that come from a fork server."""
        is_forked = self.multiprocessing_context == "forkserver"
        return num_workers > 0 and self.pool == "processes" and is_forked
