"""Builds the source of a split, the pool of its workers and its loader from a configuration.

webdataset, which imports torch, and the loader, which makes tensors, are imported where they are
first needed, so that `plan` and `trace` need neither.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.module import DataConfig
from lightning_shards.config.splits import Split, SplitConfig
from lightning_shards.errors import ConfigError, PlanError, count_of
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.readers.ahead.source_cache import cache_of_source, size_of_run
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.reader_choice import ReaderChoice, require_forkable
from lightning_shards.readers.source import Source
from lightning_shards.samples.class_labels import lack_classes, with_found_classes
from lightning_shards.samples.collate import BatchFormat, LoadedBatch
from lightning_shards.samples.decoding.decoders import IMAGE_DECODERS
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import MakeStorage, remote_storages
from lightning_shards.shards.urls import expand_urls, is_local
from lightning_shards.system.cpus import num_cpus
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.messages import BatchBytes, batch_bytes, most_batches, tensor_bytes
from lightning_shards.workers.pool import Pool, PoolDescription
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.threads import ThreadPool, require_own_randomness
from lightning_shards.workers.worker_imports import require_guard_for

if TYPE_CHECKING:
    from lightning_shards.loader import Progress, ShardLoader


def find_shards(data: DataConfig, split: Split, *, is_prepared: bool = False) -> ShardIndex:
    """The shards of a split and what is known of their counts; those of local ones are counted.

    `is_prepared` says that another rank of this node has found them before in this run.

    Raises:
        ShardError: The split is not configured, or its shards cannot be found or counted.
    """
    config = data.split(split)
    urls = expand_urls(config.urls, allow_pipe="pipe" in (data.allow_unsafe or ()))
    patterns = config.urls if isinstance(config.urls, str) else "::".join(config.urls)
    choice = ReaderChoice(
        *(split, config.reader, str(config.sampling), bool(config.stages)), patterns=patterns
    )
    is_remote = not all(map(is_local, urls))
    return choice.find(
        *(urls, CacheFolder(data.loader.cache_dir), _transport_settings(data)),
        wants_total=config.dataset_size is None,
        wants_classes=is_remote and lack_classes(data.fields_of(split)),
        is_prepared=is_prepared,
    )


def _transport_settings(data: DataConfig) -> TransportSettings:
    """How one of the workers of a rank reaches remote shards; each has connections of its own."""
    config = data.loader
    workers = 1 if config.pool == "inline" else data.num_workers * config.threads_per_worker
    connections = max(1, config.connections // max(1, workers))
    return TransportSettings(
        config.storage_options, connections, RetryPolicy(), cache_dir=config.cache_dir
    )


def make_source(data: DataConfig, split: Split, index: ShardIndex, ranks: int = 1) -> Source:
    """The source of the batches of a split, from these shards.

    `ranks` are those of a node; the cache of remote shards has room for what all of them prepare.

    Raises:
        ConfigError: The split is not configured, or its settings do not go with the shards.
        PlanError: The shards hold no sample.
    """
    config = data.split(split)
    epochs = _schedule(split, config, index)
    fields = with_found_classes(data.fields_of(split), index.urls, index.class_files)
    transforms, sample_transforms = config.transforms or {}, tuple(config.sample_transforms or ())
    sampling, max_bad = config.sampling, _max_bad(split, config, data.batch_format)
    assert sampling is not None  # the settings are complete
    reader = ReaderChoice(split, config.reader, sampling, bool(config.stages)).of(index)
    _require_forkable(data, index)
    if reader == "stream":
        from lightning_shards.readers.stream import StreamSource

        return StreamSource(
            *(index, epochs, sampling, data.seed, fields, transforms),
            stages=tuple(config.stages),
            shuffle_buffer=config.shuffle_buffer,
            batch_format=data.batch_format,
            max_bad=max_bad,
            collation=data.collation_of(split),
            storages=_streamed_storages(data, index),
            sample_transforms=sample_transforms,
        )
    assert index.counts is not None  # the choice sees to it
    order = SampleOrder(index.counts, data.seed, sampling, config.shuffle_run, config.shuffle_block)
    return IndexedSource(
        *(index, epochs, order, data.seed, fields, transforms, CacheFolder(data.loader.cache_dir)),
        batch_format=data.batch_format,
        max_bad=max_bad,
        collation=data.collation_of(split),
        storages=_storages(data, split, index, order, ranks * epochs.batch_size),
        sample_transforms=sample_transforms,
    )


def _require_forkable(data: DataConfig, index: ShardIndex) -> None:
    loader = data.loader
    if loader.pool == "processes" and data.num_workers and loader.multiprocessing_context == "fork":
        require_forkable(index.urls)


def _streamed_storages(data: DataConfig, index: ShardIndex) -> dict[str, MakeStorage] | None:
    """What streams the shards of a split if some are remote, without a cache."""
    is_remote = not all(map(is_local, index.urls))
    return remote_storages(_transport_settings(data)) if is_remote else None


def _storages(
    data: DataConfig, split: Split, index: ShardIndex, order: SampleOrder, at_once: int
) -> dict[str, MakeStorage] | None:
    """What reads the shards of a split if some are remote, with the cache of the run.

    `at_once` are the samples of one batch of each rank of a node.
    """
    if all(map(is_local, index.urls)):
        return None
    loader, settings = data.loader, _transport_settings(data)
    prepared = at_once * max(1, data.num_workers * loader.threads_per_worker)
    size = size_of_run(index, order, CacheFolder(loader.cache_dir), settings, prepared=prepared)
    cache = cache_of_source(split, size, order, CacheFolder(loader.cache_dir), loader.cache_gib)
    return remote_storages(settings, cache)


def _schedule(split: Split, config: SplitConfig, index: ShardIndex) -> EpochSchedule:
    """The epochs of a split; evaluation reads epoch 0 each time."""
    sampling, remainder, batch_size = config.sampling, config.remainder, config.batch_size
    assert sampling is not None  # the settings are complete
    assert remainder is not None
    assert batch_size is not None
    samples = epoch_samples(split, config.dataset_size, sampling, index)
    return EpochSchedule(samples, batch_size, remainder, pinned=split != "train")


def _max_bad(split: Split, config: SplitConfig, batch_format: BatchFormat) -> int | None:
    """How many bad samples of an epoch may be replaced; None: the first one raises."""
    if config.on_bad_sample != "substitute":
        return None
    if batch_format == "tuple":
        raise ConfigError(
            f"on_bad_sample='substitute' of {split!r} says by `__weight__` which samples stand for "
            "bad ones, and batch_format='tuple' has none; take batch_format='dict'"
        )
    return config.max_bad


def epoch_samples(split: str, dataset_size: int | None, sampling: str, index: ShardIndex) -> int:
    """The number of samples in an epoch: from the counts if they are known, else as configured.

    Raises:
        ConfigError: The number is unknown, exact sampling lacks counts, or `dataset_size` differs
            from them.
        PlanError: The shards hold no sample.
    """
    known = index.samples
    if known is None:
        nominal = index.total if dataset_size is None else dataset_size
        if sampling == "resampled" and nominal is not None:
            return nominal
        if sampling != "resampled":
            raise ConfigError(
                f"sampling={sampling!r} of {split!r} needs the number of samples of each shard, "
                "and the shards have no counts; put a wids JSON or sizes.json beside them"
            )
        raise ConfigError(
            f"the number of samples of {split!r} is unknown: its shards are remote and have no "
            "wids JSON or sizes.json beside them; set dataset_size"
        )
    if known == 0:
        hold = f"the {index.num_shards} shards of {split!r} hold"
        if index.num_shards == 1:
            hold = f"the only shard of {split!r} holds"
        raise PlanError(f"{hold} no sample; look at `urls`, or pack them again")
    if dataset_size is None or dataset_size == known:
        return known
    if sampling != "resampled":
        raise ConfigError(
            f"dataset_size={dataset_size} of {split!r} differs from the {known} samples that its "
            f"shards hold; leave it out, or take sampling='resampled', where an epoch is nominal"
        )
    return dataset_size


def make_loader(
    source: Source,
    place: Place | None,
    config: LoaderConfig,
    num_workers: int,
    *,
    progress: "Progress | None" = None,
    sample: LoadedBatch | None = None,
    on_cuda: bool = False,
    ranks: int = 1,
) -> "ShardLoader":
    """The loader of one rank; its length is the number of steps of an epoch.

    Args:
        source: Makes the batches.
        place: The rank and the world size; None if they are unknown, and then there may be only one
            rank.
        config: How batches are made.
        num_workers: Number of workers of this rank; 0: its own thread makes the batches.
        progress: A trainer's progress; None for a plain loop.
        sample: A batch of one sample, if there is one already.
        on_cuda: Whether batches go to a CUDA device.
        ranks: Number of ranks of this machine.

    Raises:
        PlanError: The samples do not fill one step.
        ConfigError: Samples are repeated, and batches have no `__weight__`.
        ShardError: The sample cannot be made, or the pool cannot run this source here.
    """
    from lightning_shards.loader import ShardLoader

    here = place or Place()
    plan = source.epochs.plan(here.world_size).require_steps()
    _require_weights(plan, source.describe().reserved)
    pool = make_pool(config, num_workers, source, here, sample=sample, on_cuda=on_cuda, ranks=ranks)
    loader = ShardLoader(source, pool, place, progress=progress)
    return loader.with_epoch(plan.steps).with_length(plan.steps)


def _require_weights(plan: EpochPlan, reserved: Sequence[str]) -> None:
    """Refuse batches that do not tell their repeats."""
    if plan.padded and "__weight__" not in reserved:
        raise ConfigError(
            f"remainder={plan.remainder!r} repeats {count_of(plan.padded, 'sample')} to give each "
            f"of {count_of(plan.world_size, 'rank')} one at each step, with `__weight__` 0, and "
            "batch_keys leaves `__weight__` out; name it in batch_keys, and take it out of the "
            "batch before the model"
        )


def make_pool(
    config: LoaderConfig,
    num_workers: int,
    source: Source,
    place: Place,
    *,
    sample: LoadedBatch | None = None,
    on_cuda: bool = False,
    ranks: int = 1,
) -> Pool:
    """The pool of one rank; the size of its batches is estimated from one sample.

    Args:
        config: How batches are made.
        num_workers: Number of workers of this rank; 0: its own thread makes the batches.
        source: Makes the batches.
        place: The rank and the world size.
        sample: A batch of one sample; None: it is made if the pool needs its size.
        on_cuda: Whether batches go to a CUDA device.
        ranks: Number of ranks of this machine.

    Raises:
        ShardError: The sample cannot be made, or the pool cannot run this source here.
    """
    if num_workers == 0 or config.pool == "inline":
        return InlinePool(config.worker_timeout_s, can_grow=config.pool != "inline")
    sample = sample or source.first_sample(place)
    if config.pool == "threads" or config.threads_per_worker > 1:
        require_own_randomness(source)
    if config.pool == "threads":
        return _thread_pool(config, num_workers, source, sample)
    if config.multiprocessing_context != "fork":
        require_guard_for(source)
    batch = batch_bytes(sample.batch, source.epochs.batch_size)
    return _process_pool(config, num_workers, batch, on_cuda, ranks)


def _thread_pool(
    config: LoaderConfig, num_workers: int, source: Source, sample: LoadedBatch
) -> ThreadPool:
    batch_size, at_once = source.epochs.batch_size, 1
    with suppress(ConfigError):  # the size of what cannot be pickled is unknown
        at_once = most_batches(batch_bytes(sample.batch, batch_size))
    # a second thread would wait for the GIL, and read again what lies between its samples
    is_one = at_once > 1 and _is_made_by_python(source)
    num_threads = 1 if is_one else num_workers
    size = at_once * tensor_bytes(sample.batch, batch_size)
    prefetch_factor = _prefetch(config, num_threads, size)
    return ThreadPool(
        num_threads, prefetch_factor, config.worker_timeout_s, at_once, can_grow=not is_one
    )


def _is_made_by_python(source: Source) -> bool:
    """Whether batches are made by code that holds the GIL, out of files of this machine.

    Batches of a stream depend on the number of workers, so that number is never changed.
    """
    told = source.describe()
    if told.is_streamed or told.callables or told.index is None:
        return False
    has_images = any(field.decoders & IMAGE_DECODERS for field in told.fields)
    return not has_images and all(map(is_local, told.index.urls))


def _process_pool(
    config: LoaderConfig, num_workers: int, batch: BatchBytes, on_cuda: bool, ranks: int
) -> ProcessPool:
    threads = config.threads_per_worker
    # a worker keeps messages ready; if it has several threads, each of these keeps batches, too
    kept = batch.total * (most_batches(batch) + (threads if threads > 1 else 0))
    return ProcessPool(
        num_workers,
        _prefetch(config, num_workers, kept),
        config.multiprocessing_context,
        on_cuda if config.pin_memory is None else config.pin_memory,
        threads,
        batch,
        ranks,
        config.worker_timeout_s,
    )


def _prefetch(config: LoaderConfig, num_workers: int, kept: int) -> int:
    """The configured factor, or less if workers that keep `kept` bytes exceed `prefetch_bytes`."""
    return max(1, min(config.prefetch_factor, config.prefetch_bytes // max(num_workers * kept, 1)))


def drop_remark(dropped: int, samples: int) -> str:
    """A remark about the samples that an epoch drops; empty if they are at most 1 %.

    >>> drop_remark(3, 23)
    "drops 3 of 23 samples (13.0 %) in each epoch; remainder='balanced' or 'pad' serves them all"
    >>> drop_remark(10, 1000)
    ''
    """
    if dropped * 100 <= samples:
        return ""
    return (
        f"drops {dropped:,} of {samples:,} samples ({100 * dropped / samples:.1f} %) in each "
        "epoch; remainder='balanced' or 'pad' serves them all"
    )


def describe(split: str, source: Source, world_size: int, pool: PoolDescription) -> str:
    """One line for the log: the numbers of an epoch, its reader, and remarks for the user."""
    plan, told = source.epochs.plan(world_size), source.describe()
    rest = f" ({plan.dropped:,} dropped, {plan.padded:,} repeated)"
    left = "" if told.sampling == "resampled" else rest
    dropped = "" if told.sampling == "resampled" else drop_remark(plan.dropped, plan.samples)
    remark = f"; {dropped}" if dropped else ""
    if pool.num_workers > num_cpus():
        remark += f"; {pool.num_workers} workers of each rank on {num_cpus()} cores start slowly"
    bad = "" if told.max_bad is None else f", up to {told.max_bad:,} bad samples replaced"
    return f"{split}: {told.epoch_text(plan, plan.steps)}{left}{bad}{remark}"
