"""Builds the source of a split, the pool of its workers and its loader from a configuration."""

from dataclasses import replace
from typing import Any

from lightning_shards.config import LoaderConfig, Split, SplitConfig
from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.loader import Progress, ShardLoader
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.source import Source
from lightning_shards.readers.stream import StreamSource
from lightning_shards.samples.class_labels import with_found_classes, with_given_classes
from lightning_shards.samples.collate import BatchFormat, LoadedBatch
from lightning_shards.samples.fields import Field, make_fields, takes_bytes
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.fetching import require_given
from lightning_shards.shards.storage.schemes import has_ranges
from lightning_shards.system.cpus import num_cpus
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.messages import BatchBytes, batch_bytes, most_batches, tensor_bytes
from lightning_shards.workers.pool import Pool, PoolDescription
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.threads import ThreadPool, require_own_randomness


def complete(
    split: Split,
    config: SplitConfig,
    *,
    fields: dict[str, str],
    decode: dict[str, str],
    classes: dict[str, list[str]],
    transforms: dict[str, Any],
    batch_size: int,
) -> SplitConfig:
    """The settings of a split, where each missing one is the data module's or a default.

    Args:
        split: Decides the defaults, which differ between training and evaluation.
        config: The split's own settings.
        fields: The data module's: batch key to member suffixes.
        decode: The data module's: batch key to decoder.
        classes: The data module's: batch key to names of classes.
        transforms: The data module's: batch key to callable.
        batch_size: The data module's: samples per rank and step.
    """
    is_train = split == "train"
    return replace(
        config,
        sampling=config.sampling or ("resampled" if is_train else "sequential"),
        remainder=config.remainder or ("drop" if is_train else "balanced"),
        batch_size=config.batch_size or batch_size,
        fields=fields if config.fields is None else config.fields,
        decode=decode if config.decode is None else config.decode,
        classes=classes if config.classes is None else config.classes,
        transforms=transforms if config.transforms is None else config.transforms,
    )


def split_fields(config: SplitConfig, allow_unsafe: frozenset[str]) -> tuple[Field, ...]:
    """The fields of a split, checked.

    Args:
        config: The settings, as `complete` gives them.
        allow_unsafe: Names of decoders that can run code and are allowed.

    Raises:
        ConfigError: These fields cannot be taken from any shard.
    """
    fields, decode, transforms = config.fields or {}, config.decode or {}, config.transforms or {}
    unknown = sorted(transforms.keys() - fields.keys())
    if unknown and not config.stages:  # a stage may add fields
        raise ConfigError(
            f"transforms names {unknown}, and the fields are {sorted(fields)}; name a field, or "
            "add one to fields"
        )
    decoding = [name for name in fields if takes_bytes(transforms.get(name))]
    for name in decoding:
        if decode.get(name, "raw") != "raw":
            raise ConfigError(
                f"the transform of {name!r} decodes by itself, and decode={decode[name]!r} would "
                f"do so before it; leave {name!r} out of decode"
            )
    made = make_fields(fields, decode | dict.fromkeys(decoding, "raw"), allow_unsafe)
    return with_given_classes(made, config.classes or {})


def make_source(
    split: Split,
    config: SplitConfig,
    index: ShardIndex,
    *,
    seed: int,
    batch_format: BatchFormat,
    allow_unsafe: frozenset[str],
    cache: CacheFolder,
) -> Source:
    """The source of a split, from its `complete` settings and those of its data module.

    Raises:
        ConfigError: The settings do not go with the shards.
        PlanError: The shards hold no sample.
    """
    epochs = _schedule(split, config, index)
    fields = with_found_classes(split_fields(config, allow_unsafe), index.urls)
    transforms, max_bad = config.transforms or {}, _max_bad(split, config, batch_format)
    sampling = config.sampling
    assert sampling is not None  # the settings are complete
    if choose_reader(split, config, sampling, index) == "stream":
        return StreamSource(
            *(index, epochs, sampling, seed, fields, transforms),
            stages=tuple(config.stages),
            shuffle_buffer=config.shuffle_buffer,
            batch_format=batch_format,
            max_bad=max_bad,
        )
    assert index.counts is not None  # local shards have been counted
    run, block = config.shuffle_run, config.shuffle_block
    order = SampleOrder(index.counts, seed, sampling, run, block)
    return IndexedSource(
        *(index, epochs, order, seed, fields, transforms, cache),
        batch_format=batch_format,
        max_bad=max_bad,
    )


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


def choose_reader(split: Split, config: SplitConfig, sampling: str, index: ShardIndex) -> str:
    """The reader of a split: `stream` or `indexed`.

    `auto` takes `stream` if sampling is `resampled`, there are stages or a shard is remote.

    Raises:
        ConfigError: The `indexed` reader is configured, and cannot read this split.
    """
    remote = [url for url in index.urls if not has_ranges(url)]
    if config.reader == "auto":
        streams = sampling == "resampled" or config.stages or remote
        return "stream" if streams else "indexed"
    if config.reader == "indexed" and remote:
        raise ConfigError(
            f"reader='indexed' of {split!r} reads local shards only, and {len(remote)} of "
            f"{index.num_shards} are remote; copy them, or take reader='stream'"
        )
    if config.reader == "indexed" and config.stages:
        raise ConfigError(
            f"stages of {split!r} are for reader='stream', where samples come one after the other; "
            "use transforms, or take reader='stream'"
        )
    return config.reader


def epoch_samples(split: str, dataset_size: int | None, sampling: str, index: ShardIndex) -> int:
    """The number of samples in an epoch: from the counts if they are known, else as configured.

    Raises:
        ShardNotFoundError: There are no counts, and by its server there is no such shard.
        ConfigError: The number is unknown, exact sampling lacks counts, or `dataset_size` differs
            from them.
        PlanError: The shards hold no sample.
    """
    known = index.samples
    if known is None:
        nominal = index.total if dataset_size is None else dataset_size
        if sampling == "resampled" and nominal is not None:
            return nominal
        # perhaps there are no counts because the URL is wrong
        require_given(next((url for url in index.urls if not has_ranges(url)), ""))
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
    progress: Progress | None = None,
    sample: LoadedBatch | None = None,
    on_cuda: bool = False,
    ranks: int = 1,
) -> ShardLoader:
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
        ShardError: The sample cannot be made, or the pool cannot run this source here.
    """
    here = place or Place()
    steps = source.epochs.plan(here.world_size).require_steps().steps
    pool = make_pool(config, num_workers, source, here, sample=sample, on_cuda=on_cuda, ranks=ranks)
    loader = ShardLoader(source, pool, place, progress=progress)
    return loader.with_epoch(steps).with_length(steps)


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
        return InlinePool(config.worker_timeout_s)
    sample = sample or source.first_sample(place)
    if config.pool == "threads" or config.threads_per_worker > 1:
        require_own_randomness(source)
    if config.pool == "threads":
        size = tensor_bytes(sample.batch, source.epochs.batch_size)
        prefetch_factor = _prefetch(config, num_workers, size)
        return ThreadPool(num_workers, prefetch_factor, config.worker_timeout_s)
    batch = batch_bytes(sample.batch, source.epochs.batch_size)
    return _process_pool(config, num_workers, batch, on_cuda, ranks)


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
