"""The loaders of a data module, and the pool of each: its kind, its workers, how much is ahead."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lightning_shards.build.mixtures import mixture_lines
from lightning_shards.config.module import LoaderConfig
from lightning_shards.config.splits import SplitName, set_of
from lightning_shards.errors import ConfigError, count_of, require_library
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.system.process import num_cpus
from lightning_shards.workers.inline import InlinePool, try_first_sample
from lightning_shards.workers.messages import batch_bytes, most_batches
from lightning_shards.workers.pool import Pool, PoolDescription
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.threads import ThreadPool, require_own_randomness
from lightning_shards.workers.worker_imports import require_sendable

if TYPE_CHECKING:
    from lightning_shards.loader import Progress, ShardLoader


def make_pool(
    config: LoaderConfig,
    num_workers: int,
    source: Source,
    place: Place,
    *,
    sample: LoadedBatch | None = None,
    on_cuda: bool = False,
    allow_unsafe: Collection[str] = (),
) -> Pool:
    """The pool of one rank, for batches from this source at this place.

    Args:
        config: How batches are made.
        num_workers: Number of workers of this rank; 0: its own thread makes the batches.
        source: Makes the batches.
        place: The rank and the world size.
        sample: A batch of one sample, which tells the size of batches; None: it is made if need be.
        on_cuda: Whether batches go to a CUDA device.
        allow_unsafe: As in `ShardDataModule`.

    Raises:
        ShardError: The sample cannot be made, or the pool cannot run this source here.
    """
    if num_workers == 0 or config.pool == "inline":
        return InlinePool()
    sample = sample or try_first_sample(source, place)
    if config.pool == "threads" or config.threads_per_worker > 1:
        require_own_randomness(source)
    batch = 0
    with suppress(*([ConfigError] if config.pool == "threads" else [])):
        batch = batch_bytes(sample.batch, source.epochs.batch_size)  # unless it cannot be pickled
    if config.pool == "threads":
        prefetch = _prefetch(config, num_workers, batch)
        return ThreadPool(num_workers, prefetch, config.worker_timeout_s)
    if config.pool == "ray":
        return _ray_pool(config, num_workers, batch, allows_open="ray" in allow_unsafe)
    return _process_pool(config, num_workers, source, batch, on_cuda)


def _process_pool(
    config: LoaderConfig, num_workers: int, source: Source, batch: int, on_cuda: bool
) -> ProcessPool:
    if config.multiprocessing_context != "fork":
        require_sendable(source)
    threads = config.threads_per_worker
    # a worker keeps messages ready; if it has several threads, each of these keeps batches, too
    kept = batch * (most_batches(batch) + (threads if threads > 1 else 0))
    return ProcessPool(
        num_workers,
        _prefetch(config, num_workers, kept),
        config.multiprocessing_context,
        on_cuda if config.pin_memory is None else config.pin_memory,
        threads,
        batch,
        config.worker_timeout_s,
    )


def _ray_pool(config: LoaderConfig, num_workers: int, batch: int, allows_open: bool) -> Pool:
    require_library("pool='ray'", "ray", "Ray", "ray", " on all nodes; or take another pool")
    from lightning_shards.workers.ray.pool import RayPool

    at_once = most_batches(batch)
    return RayPool(
        num_workers,
        _prefetch(config, num_workers, at_once * batch),
        at_once,
        config.ray.cpus_per_worker,
        config.ray.placement,
        config.worker_timeout_s,
        address=config.ray.address,
        allows_open=allows_open,
    )


def _prefetch(config: LoaderConfig, num_workers: int, kept: int) -> int:
    """The configured factor, or less if workers that keep `kept` bytes exceed `prefetch_bytes`."""
    affordable = config.prefetch_bytes // max(num_workers * kept, 1)
    return max(1, min(config.prefetch_factor, affordable))


def make_loader(
    source: Source,
    place: Place | None,
    config: LoaderConfig,
    num_workers: int,
    *,
    name: SplitName = "",
    progress: "Progress | None" = None,
    sample: LoadedBatch | None = None,
    **of_machine: Any,
) -> "ShardLoader":
    """The loader of one rank; its length is the number of steps of an epoch.

    Args:
        source: Makes the batches.
        place: The rank and the world size; None if they are unknown, for a single process.
        config: How batches are made.
        num_workers: Number of workers of this rank; 0: its own thread makes the batches.
        name: Name of its split or evaluation set.
        progress: A trainer's progress; None for a plain loop.
        sample: A batch of one sample, if there is one already.
        of_machine: ``on_cuda`` and ``allow_unsafe`` of `make_pool`.

    Raises:
        PlanError: The samples do not fill one step.
        ConfigError: Samples are repeated, and batches have no `__weight__`.
        ShardError: The sample cannot be made, or the pool cannot run this source here.
    """
    from lightning_shards.loader import ShardLoader

    here = place or Place()
    plan, description = source.epochs.plan(here.world_size), source.describe()
    plan.require_steps(name, is_nominal=description.is_nominal)
    _require_weights(plan, description.reserved)
    pool = make_pool(config, num_workers, source, here, sample=sample, **of_machine)
    return ShardLoader(source, pool, place, name=name, progress=progress)


def _require_weights(plan: EpochPlan, reserved: Sequence[str]) -> None:
    """Refuse batches that do not tell their repeats."""
    if plan.padded and "__weight__" not in reserved:
        raise ConfigError(
            f"remainder={plan.remainder!r} repeats {count_of(plan.padded, 'sample')} to give each "
            f"of {count_of(plan.world_size, 'rank')} one at each step, with `__weight__` 0, and "
            "the batches have no `__weight__`; take batch_format='dict', and name it in batch_keys "
            "if you set them"
        )


def facts_of(loaders: "Mapping[SplitName, ShardLoader]") -> dict[str, int | str]:
    """The values that must be equal on all ranks; those of several sets say which it is."""
    has_sets = any(map(set_of, loaders))
    facts: dict[str, int | str] = {"the evaluation sets": ", ".join(loaders)} if has_sets else {}
    return facts | {
        f"{what} of {name}" if has_sets else what: fact
        for name, loader in loaders.items()
        for what, fact in loader.facts.items()
    }


def describe(
    split: SplitName,
    source: Source,
    world_size: int,
    pool: PoolDescription,
    *,
    epoch: int = 0,
) -> str:
    """One line for the log: the numbers of an epoch, its reader, and remarks for the user.

    A mixture has a line for each component, by the weights of this epoch.
    """
    plan, description = source.epochs.plan(world_size), source.describe()
    rest = f" ({plan.dropped:,} dropped, {plan.padded:,} repeated)"
    left = "" if description.sampling == "resampled" else rest
    lines = mixture_lines(description, plan, epoch)
    remark = ""
    if description.sampling != "resampled" and not lines and plan.dropped * 100 > plan.samples:
        share = f"{100 * plan.dropped / plan.samples:.1f} %"
        remark = (
            f"; drops {plan.dropped:,} of {plan.samples:,} samples ({share}) in each epoch; "
            "remainder='balanced' or 'pad' serves them all"
        )
    if pool.num_workers > num_cpus() and pool.kind != "ray":
        remark += f"; {pool.num_workers} workers of each rank on {num_cpus()} cores start slowly"
    most = description.max_bad
    bad = "" if most is None else f", up to {most:,} bad samples replaced"
    first = f"{split}: {description.epoch_text(plan, plan.steps)}{left}{bad}{remark}"
    return "\n".join([first, *lines])
