"""From the configuration of a split to the source of its batches."""

from dataclasses import dataclass
from typing import Any

from lightning_shards.config import Split, SplitConfig
from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.source import Source
from lightning_shards.readers.stream import StreamSource
from lightning_shards.samples.collate import BatchFormat
from lightning_shards.samples.fields import Field, make_fields, takes_bytes
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.urls import is_local


@dataclass(frozen=True)
class Defaults:
    """What a split takes from its data module, unless it says otherwise itself.

    Attributes:
        fields: batch key to member suffixes.
        decode: batch key to decoder.
        transforms: batch key to callable.
        batch_size: samples per rank and step.
        seed: keys every draw, shuffle and transform.
        batch_format: a dict, or the fields in order as a tuple.
        allow_unsafe: decoders that can run code and are wanted all the same.
        cache_dir: where tables of members are kept.
    """

    fields: dict[str, str]
    decode: dict[str, str]
    transforms: dict[str, Any]
    batch_size: int
    seed: int
    batch_format: BatchFormat
    allow_unsafe: frozenset[str]
    cache_dir: str | None


def split_fields(config: SplitConfig, defaults: Defaults) -> tuple[Field, ...]:
    """The fields of a split, checked.

    Raises:
        ConfigError: they cannot be taken from any shard.
    """
    fields = defaults.fields if config.fields is None else config.fields
    decode = defaults.decode if config.decode is None else config.decode
    transforms = split_transforms(config, defaults)
    unknown = sorted(transforms.keys() - fields.keys())
    if unknown and not config.stages:  # a stage may make more
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
    return make_fields(fields, decode | dict.fromkeys(decoding, "raw"), defaults.allow_unsafe)


def split_transforms(config: SplitConfig, defaults: Defaults) -> dict[str, Any]:
    """The transforms of a split by field."""
    return defaults.transforms if config.transforms is None else config.transforms


def make_source(split: Split, config: SplitConfig, defaults: Defaults, index: ShardIndex) -> Source:
    """What makes the batches of a split.

    Raises:
        ConfigError: the settings do not go with the shards.
        PlanError: the shards hold no sample.
    """
    is_train = split == "train"
    max_bad = _max_bad(split, config, defaults)
    sampling = config.sampling or ("resampled" if is_train else "sequential")
    epochs = EpochSchedule(
        samples=epoch_samples(split, config.dataset_size, sampling, index),
        batch_size=config.batch_size or defaults.batch_size,
        remainder=config.remainder or ("drop" if is_train else "balanced"),
        pinned=not is_train,
    )
    fields = split_fields(config, defaults)
    transforms = split_transforms(config, defaults)
    if choose_reader(split, config, sampling, index) == "indexed":
        assert index.counts is not None  # noqa: S101 local shards have been counted
        run, block = config.shuffle_run, config.shuffle_block
        return IndexedSource(
            index,
            epochs,
            SampleOrder(index.counts, defaults.seed, sampling, run, block),
            defaults.seed,
            fields,
            transforms,
            batch_format=defaults.batch_format,
            cache_dir=defaults.cache_dir,
            max_bad=max_bad,
        )
    return StreamSource(
        index,
        epochs,
        sampling,
        defaults.seed,
        fields,
        transforms,
        stages=tuple(config.stages),
        shuffle_buffer=config.shuffle_buffer,
        batch_format=defaults.batch_format,
        max_bad=max_bad,
    )


def _max_bad(split: Split, config: SplitConfig, defaults: Defaults) -> int | None:
    """How many bad samples of an epoch are replaced; None: the first raises."""
    if config.on_bad_sample != "substitute":
        return None
    if defaults.batch_format == "tuple":
        raise ConfigError(
            f"on_bad_sample='substitute' of {split!r} says by `__weight__` which samples stand for "
            "bad ones, and batch_format='tuple' has none; take batch_format='dict'"
        )
    return config.max_bad


def choose_reader(split: Split, config: SplitConfig, sampling: str, index: ShardIndex) -> str:
    """`stream` or `indexed`.

    `auto` streams what is resampled, what has stages and what is not local.

    Raises:
        ConfigError: `indexed` was asked for and cannot be.
    """
    remote = [url for url in index.urls if not is_local(url)]
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
    """Samples of an epoch: from the counts where they are known, else as configured.

    Raises:
        ConfigError: nobody knows, exact sampling without counts, or both are there and differ.
        PlanError: the shards hold no sample.
    """
    known = index.samples
    if known is None:
        if sampling != "resampled":
            raise ConfigError(
                f"sampling={sampling!r} of {split!r} needs the number of samples of each shard, "
                "which nobody has counted; put a wids JSON or sizes.json beside the shards"
            )
        nominal = index.total if dataset_size is None else dataset_size
        if nominal is None:
            raise ConfigError(
                f"nobody knows how many samples {split!r} has: its shards are remote and have no "
                "wids JSON or sizes.json beside them; set dataset_size"
            )
        return nominal
    if known == 0:
        raise PlanError(
            f"the {index.num_shards} shards of {split!r} hold no sample; look at `urls`"
        )
    if dataset_size is None or dataset_size == known:
        return known
    if sampling != "resampled":
        raise ConfigError(
            f"dataset_size={dataset_size} of {split!r} differs from the {known} samples that its "
            f"shards hold; leave it out, or take sampling='resampled', where an epoch is nominal"
        )
    return dataset_size


def drop_remark(dropped: int, samples: int) -> str:
    """What to say of the samples that an epoch drops, if they are more than 1 %; else nothing.

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


def describe(split: str, source: Source, world_size: int) -> str:
    """One line for the log: the epoch in numbers, who reads it, and what is worth a look."""
    plan, told = source.epochs.plan(world_size), source.describe()
    shards = "" if told.index is None else f" from {told.index.num_shards:,} shards"
    rest = f" ({plan.dropped:,} dropped, {plan.padded:,} repeated)"
    left = "" if told.sampling == "resampled" else rest
    dropped = "" if told.sampling == "resampled" else drop_remark(plan.dropped, plan.samples)
    remark = f"; {dropped}" if dropped else ""
    bad = "" if told.max_bad is None else f", up to {told.max_bad:,} bad samples replaced"
    return (
        f"{split}: {plan.samples:,} samples{shards}, "
        f"{told.sampling} by the {told.reader} reader, {plan.steps:,} steps of "
        f"{world_size} x {plan.batch_size} samples{left}{bad}{remark}"
    )
