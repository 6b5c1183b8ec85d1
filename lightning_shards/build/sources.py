"""The shards of a split, and the source that makes its batches."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_shards.build.mixtures import make_order, make_slots
from lightning_shards.build.reader_choice import (
    choose_reader,
    find_index,
    is_published,
    require_forkable,
)
from lightning_shards.config.fields import with_kinds
from lightning_shards.config.module import DataConfig
from lightning_shards.config.splits import SplitConfig, SplitName
from lightning_shards.errors import (
    ConfigError,
    PlanError,
    ShardNotFoundError,
    count_of,
    errors_about,
)
from lightning_shards.plan.alike import AlikeOrder
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.mixture import component_seed
from lightning_shards.plan.order import Order, SampleOrder
from lightning_shards.plan.strands import StrandOrder
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.recipe import Recipe
from lightning_shards.readers.source import Source
from lightning_shards.readers.stream_stages import first_suffixes
from lightning_shards.remote.ahead import need_of_source
from lightning_shards.remote.backend import RetryPolicy, TransportSettings
from lightning_shards.remote.cache import cache_of_run
from lightning_shards.remote.storage import remote_storages
from lightning_shards.samples.collate import BatchFormat
from lightning_shards.samples.fields import lack_classes, with_found_classes
from lightning_shards.shards.classes import ClassNames
from lightning_shards.shards.filters.settings import SampleFilter, sample_filter
from lightning_shards.shards.index import ShardIndex, join_indexes
from lightning_shards.shards.joins.settings import join_settings
from lightning_shards.shards.patterns import expand_urls
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.published_tables import index_command
from lightning_shards.shards.scheme_table import has_ranges
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact, split_url
from lightning_shards.system.process import job_name

if TYPE_CHECKING:
    from lightning_shards.shards.joins.kept import Joined

_log = logging.getLogger(__name__)

_BUFFER = 1000  # samples, of a stream's shuffle


def _key(split: str, component: str) -> str:
    """What messages call a component, or a data set alone."""
    return f"{split}.mix.{component}" if component else split


def _with_filter(
    key: str, config: SplitConfig, index: ShardIndex, chosen: SampleFilter, data: DataConfig
) -> ShardIndex:
    """The index, which knows what the filter leaves.

    Raises:
        ConfigError: The filter names what is not there, or leaves nothing; or a remote shard has no
            member table, as far as the first one shows.
        ShardError: The tables cannot be had.
    """
    from lightning_shards.shards.filters.applying import filtered_index

    cache = CacheFolder(data.loader.cache_dir)
    remote = [url for url in index.urls if not is_local(url)]
    can_have = index.counts is not None and all(map(has_ranges, remote))
    with closing(Storages(remote_storages(transport_settings(data)))) as storages:
        tables = TableStore(cache, storages=storages)
        if not remote or (
            can_have
            and (index.has_tables or is_published(remote[0], tables, storages, or_kept=True))
        ):
            return filtered_index(index, chosen, tables, cache)
    remedy = f"make them by {index_command(config.patterns)}"
    if not all(map(has_ranges, remote)):  # pipe: and the like are for streams alone
        remedy = "copy the shards to a store that gives ranges"
    raise ConfigError(
        f"{chosen.names} of {key!r} needs the member tables of the shards, and "
        f"{redact(remote[0])} has no member table or no count beside it; {remedy}, or "
        "leave samples out by a function in `stages`"
    )


def warn_of_shared_shards(split: SplitName, indexes: Mapping[SplitName, ShardIndex]) -> None:
    """Warn if a split is evaluated on shards of the training, and no samples of them are left out.

    `indexes` are those of this split and of others.
    """
    for other in indexes.keys() - {split}:
        pair = indexes[split], indexes[other]
        shared = sorted({*pair[0].urls} & {*pair[1].urls})
        leave_out = any(part.kept_identity for index in pair for part in index.parts)
        if "train" in (split, other) and shared and not leave_out:
            _log.warning(
                "%s and train read the same %s, first %s, so that the model is judged by samples "
                "that it was trained on; give each its own shards, or its own samples by keep or "
                "exclude",
                other if split == "train" else split,
                count_of(len(shared), "shard"),
                redact(shared[0]),
            )


def find_shards(data: DataConfig, split: SplitName) -> ShardIndex:
    """The shards of a split and what is known of their counts; those of local ones are counted.

    Raises:
        ShardError: The split is not configured, or its shards cannot be found or counted.
    """
    found: list[ShardIndex] = []
    config = data.split(split)
    for name, part in config.component_splits().items():
        with errors_about(_key(split, name), ConfigError, ShardNotFoundError):
            found.append(_find(data, part, _key(split, name)))
    return join_indexes(found) if config.mix else found[0]


def _find(data: DataConfig, config: SplitConfig, key: str) -> ShardIndex:
    """The shards of a split or of a component with these settings; `key` is for messages."""
    urls = expand_urls(config.urls or [], allow_pipe="pipe" in (data.allow_unsafe or ()))
    is_remote = not all(map(is_local, urls))
    if config.index is not None and any(map(is_local, urls)):
        raise ConfigError(
            f"index={config.index!r} of {key!r} is for remote shards, and {redact(urls[0])} is "
            "of this machine, where indexes lie beside shards; leave it out"
        )
    wants_classes = is_remote and lack_classes(data.fields_from(config))
    settings = transport_settings(data)
    index = find_index(key, config, urls, settings, wants_classes=wants_classes)
    chosen = sample_filter(config.keep, config.exclude)
    return index if chosen is None else _with_filter(key, config, index, chosen, data)


def transport_settings(data: DataConfig, ranks: int = 1) -> TransportSettings:
    """How a worker of so many ranks of a node reaches remote shards, by its own connections."""
    config = data.loader
    workers = 1 if config.pool == "inline" else data.num_workers * config.threads_per_worker
    connections = max(1, config.connections // (ranks * max(1, workers)))
    return TransportSettings(
        config.storage_options,
        connections,
        RetryPolicy(),
        cache_dir=config.cache_dir,
        indexes=_local_indexes(data),
    )


def _local_indexes(data: DataConfig) -> dict[str, str]:
    """By the folder of remote shards the folder of this machine that has their index."""
    found: dict[str, str] = {}
    for split in data.splits.values():
        for part in split.component_splits().values() if split is not None else ():
            if part.index is not None:
                urls = expand_urls(part.urls or [])
                found |= dict.fromkeys({split_url(url)[0] for url in urls}, part.index)
    return found


def make_source(
    data: DataConfig, split: SplitName, index: ShardIndex, ranks: int = 1, nodes: int = 1
) -> Source:
    """The source of the batches of a split, from these shards.

    `ranks` are those of each node; the cache of remote shards has room for what all prepare.

    Raises:
        ConfigError: The split is not configured, or its settings do not go with the shards.
        PlanError: The shards hold no sample.
    """
    configs, of_both = data.split(split).component_splits(), _of_both(data, split, index)
    _require_forkable(data, configs.values(), index)
    slots, named = of_both["slots"], {_key(split, name): each for name, each in configs.items()}
    is_indexed = choose_reader(named, index.parts, is_mixture=slots is not None) == "indexed"
    parts, orders = list[_Part](), list[Order]()
    of_each = zip(configs.items(), index.parts, index.first_shards.tolist(), strict=True)
    for (name, each), shards, first in of_each:
        with errors_about(_key(split, name), ConfigError, ShardNotFoundError):
            parts.append(_make_part(data, name, each, shards, first if is_indexed else None))
            orders += [_order_of(data, each, parts[-1])] if is_indexed else []
    _require_same_classes(parts)
    _warn_of_absent(parts)
    recipes = tuple(part.recipe.in_order_of(parts[0].recipe) for part in parts)
    if not is_indexed:
        from lightning_shards.readers.stream import StreamSource

        sampling = next(iter(configs.values())).sampling or "sequential"
        storages = _streamed_storages(data, index, ranks)
        return StreamSource(**of_both, recipes=recipes, sampling=sampling, storages=storages)
    order = make_order(slots, index.parts, recipes, orders) if slots else orders[0]
    return IndexedSource(
        **of_both,
        recipes=recipes,
        order=order,
        cache=CacheFolder(data.loader.cache_dir),
        storages=_storages(data, split, index, order, ranks, nodes),
        joined=tuple(part.joined for part in parts if part.joined),
    )


def _of_both(data: DataConfig, split: SplitName, index: ShardIndex) -> dict[str, Any]:
    """What the sources of both readers are made of."""
    config, seed = data.split(split), data.seed
    slots = make_slots(config, index, seed) if config.mix else None
    samples = slots.epoch_samples if slots else epoch_samples(split, config, index)
    assert config.batch_size  # the settings are complete
    assert config.remainder
    return {
        "index": index,
        "epochs": EpochSchedule(
            samples, config.batch_size, config.remainder, pinned=split != "train"
        ),
        "seed": seed,
        "slots": slots,
        "batch_format": data.batch_format,
        "max_bad": _max_bad(split, config, data.batch_format),
        "collation": data.collation_of(split),
    }


class _Part(NamedTuple):
    """A component of a mixture, or all of a split: its name is empty then.

    Attributes:
        name: Of the component.
        shards: Its shards.
        recipe: How its samples become rows.
        joined: Its shards with the tables that are joined to its samples; None: there are none.
    """

    name: str
    shards: ShardIndex
    recipe: Recipe
    joined: "Joined | None"


def _make_part(
    data: DataConfig, name: str, config: SplitConfig, shards: ShardIndex, first_shard: int | None
) -> _Part:
    """The part with these settings; a stream, whose `first_shard` is None, reads no joins.

    Raises:
        ShardError: A setting does not go with the shards, or a table or a label cannot be read.
    """
    buffer, joined = config.shuffle_buffer, None
    if first_shard is not None and buffer is not None:
        raise ConfigError(
            f"shuffle_buffer={buffer} is that of a stream, and these shards are read by "
            "offsets, shuffled by shuffle_run and shuffle_block; leave it out, or take "
            "reader='stream'"
        )
    fields = with_found_classes(data.fields_from(config), shards.urls, shards.class_files)
    transforms = config.transforms or {}
    if first_shard is not None and config.join:
        from lightning_shards.shards.joins.kept import Joined, find_join

        of_run = CacheFolder(data.loader.cache_dir), remote_storages(transport_settings(data))
        joins = tuple(find_join(each, *of_run) for each in join_settings(config.join))
        fields = with_kinds(fields, joins, config.decode or {}, transforms)
        joined = Joined(joins, shards, first_shard, name)
    of_samples, stages = tuple(config.sample_transforms or ()), tuple(config.stages)
    buffer = _BUFFER if buffer is None else buffer
    return _Part(name, shards, Recipe(fields, transforms, of_samples, stages, buffer), joined)


def _order_of(data: DataConfig, config: SplitConfig, part: _Part) -> Order:
    """The order of the samples that are left, under the numbers that they have in the shards."""
    index, counts = part.shards, part.shards.kept_counts
    seed = component_seed(data.seed, part.name) if part.name else data.seed
    assert counts is not None  # the choice of the reader sees to it
    cache, storages = CacheFolder(data.loader.cache_dir), _streamed_storages(data, index)
    if config.balance:
        from lightning_shards.build.balancing import ClassLabels

        (field,) = (field for field in part.recipe.fields if field.name == config.balance)
        joins = part.joined.joins if part.joined else ()
        joins = tuple(join for join in joins if join.settings.name == config.balance)
        labels = ClassLabels(index, field, joins, cache, storages)
        order: Order = labels.order(config.balance_weights or {}, seed)
    else:
        mixed = config.shuffle_run, config.shuffle_block
        order = SampleOrder(counts, seed, config.sampling or "sequential", *mixed)
        if config.shuffle_strands > 1:
            order = StrandOrder(order, config.shuffle_strands, config.shuffle_width)
        order = order if index.kept is None else KeptOrder(order, index.kept)
    if (alike := config.batch_alike) is None:
        return order
    from lightning_shards.build.alike import MemberSizes, suffixes_compared

    suffixes = suffixes_compared(alike.field, data.fields_from(config))
    sizes = MemberSizes(suffixes, index, cache, storages)
    return AlikeOrder(order, seed, alike.group, ";".join(suffixes), sizes)


def _require_same_classes(parts: Sequence[_Part]) -> None:
    """Check that no label has one number in one component and another one in the next.

    Raises:
        ConfigError: The classes of a field differ.
    """
    first_of: dict[str, tuple[str, ClassNames]] = {}
    for part in parts:
        for field in part.recipe.fields:
            if field.classes is None:
                continue
            other, classes = first_of.setdefault(field.name, (part.name, field.classes))
            if classes.numbers != field.classes.numbers:
                raise ConfigError(
                    f"components {other!r} and {part.name!r} number the classes of {field.name!r} "
                    f"differently, by {classes.source} and {field.classes.source}; give the split "
                    f"one list for both: classes: {{{field.name}: [...]}}"
                )


def _warn_of_absent(parts: Sequence[_Part]) -> None:
    """Warn of optional fields without a member in the first local shards: a suffix may be wrong."""
    fields = [(number, field) for number, part in enumerate(parts) for field in part.recipe.fields]
    optional = {field.name for _, field in fields if field.is_optional}
    known = [first_suffixes(part.shards.urls[:1]) if optional else set[str]() for part in parts]
    for name in sorted(optional if all(known) else ()):
        of_name = [(number, field) for number, field in fields if field.name == name]
        if not any(field.is_joined or field.suffixes_in(known[n]) for n, field in of_name):
            _log.warning(
                "no sample at the beginning of %s has a member for the optional field %r, only %s; "
                "correct its suffix in `fields`, or leave it out",
                *(redact(parts[0].shards.urls[0]), name, sorted(set[str]().union(*known))),
            )


def _require_forkable(data: DataConfig, configs: Iterable[SplitConfig], index: ShardIndex) -> None:
    """Refuse to fork workers after shards or tables of joins were read by what survives no fork."""
    loader = data.loader
    if loader.pool == "processes" and data.num_workers and loader.multiprocessing_context == "fork":
        joins = (join for config in configs for join in join_settings(config.join or {}))
        require_forkable([*index.urls, *(url for join in joins for url in join.table)])


def _streamed_storages(
    data: DataConfig, index: ShardIndex, ranks: int = 1
) -> dict[str, MakeStorage] | None:
    """What streams the shards of a split if some are remote, without a cache."""
    is_remote = not all(map(is_local, index.urls))
    return remote_storages(transport_settings(data, ranks)) if is_remote else None


def _storages(
    data: DataConfig,
    split: SplitName,
    index: ShardIndex,
    order: Order,
    ranks: int,
    nodes: int,
) -> dict[str, MakeStorage] | None:
    """What reads the shards of a split if some are remote, with the cache of the run."""
    if all(map(is_local, index.urls)):
        return None
    loader, settings = data.loader, transport_settings(data, ranks)
    folder = CacheFolder(loader.cache_dir)
    batch_size = data.split(split).batch_size
    assert batch_size is not None  # the settings are complete
    prepared = ranks * batch_size * max(1, data.num_workers * loader.threads_per_worker)
    need = need_of_source(
        index,
        order,
        folder,
        settings,
        prepared=prepared,
        messages=ranks * data.num_workers * loader.prefetch_factor,
        batch_size=batch_size,
        nodes=nodes,
    )
    run = f"{job_name(ranks)} {split} {order.identity()['seed']} {loader.cache_gib}"
    cache = need and cache_of_run(folder, run, need, loader.cache_gib)
    return remote_storages(settings, cache)


def _max_bad(split: SplitName, config: SplitConfig, batch_format: BatchFormat) -> int | None:
    """How many bad samples of an epoch may be replaced; None: the first one raises."""
    if config.on_bad_sample != "substitute":
        return None
    if batch_format == "tuple":
        raise ConfigError(
            f"on_bad_sample='substitute' of {split!r} says by `__weight__` which samples stand for "
            "bad ones, and batch_format='tuple' has none; take batch_format='dict'"
        )
    return config.max_bad


def epoch_samples(split: str, config: SplitConfig, index: ShardIndex) -> int:
    """The number of samples in an epoch: from the counts if they are known, else as configured.

    Raises:
        ConfigError: The number is unknown, exact sampling lacks counts, or `dataset_size` differs
            from them.
        PlanError: The shards hold no sample.
    """
    known, sampling, dataset_size = index.kept_samples, config.sampling, config.dataset_size
    if known is None:
        nominal = index.total if dataset_size is None else dataset_size
        if sampling == "resampled" and nominal is not None:
            return nominal
        needed = f"sampling={sampling!r} of {split!r} needs the number of samples of each shard"
        if sampling == "resampled":
            needed = f"the number of samples of {split!r} is unknown"
        raise ConfigError(
            f"{needed}, and its remote shards have no wids JSON or sizes.json beside them; put one "
            "there, or, under sampling='resampled', set dataset_size"
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
            f"dataset_size={dataset_size} of {split!r} differs from the {known} samples that "
            f"{'are left of its shards' if index.kept else 'its shards hold'}; leave it out, or "
            "take sampling='resampled', whose epochs may have any length"
        )
    return dataset_size
