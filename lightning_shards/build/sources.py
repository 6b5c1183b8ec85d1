"""From the settings of a split and its shards to the source that makes its batches."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lightning_shards.build.found_shards import (
    key_of,
    one_of_each_scheme,
    transport_settings,
)
from lightning_shards.build.mixtures import make_order, make_slots
from lightning_shards.config.module import DataConfig, with_kinds
from lightning_shards.config.splits import SplitConfig, SplitName
from lightning_shards.errors import ConfigError, PlanError, ShardNotFoundError, errors_about
from lightning_shards.plan.alike import AlikeOrder
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.mixture import component_seed
from lightning_shards.plan.order import Order, SampleOrder
from lightning_shards.plan.strands import StrandOrder
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.recipe import Recipe, agreed_recipes
from lightning_shards.readers.source import Source
from lightning_shards.readers.stream_stages import first_suffixes
from lightning_shards.remote.ahead import need_of_source
from lightning_shards.remote.cache import PieceCache, cache_of_run
from lightning_shards.remote.storage import remote_storages
from lightning_shards.samples.fields import with_found_classes
from lightning_shards.shards.classes import ClassNames, same_classes
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.settings import join_settings
from lightning_shards.shards.scheme_table import SCHEMES, has_ranges
from lightning_shards.shards.storage.schemes import MakeStorage
from lightning_shards.shards.tables import index_command
from lightning_shards.shards.urls import is_local, redact, scheme_of
from lightning_shards.system.process import job_name

if TYPE_CHECKING:
    from lightning_shards.shards.joins.kept import Joined

_log = logging.getLogger(__name__)

_BUFFER = 1000  # samples, of a stream's shuffle


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
    slots, named = of_both["slots"], {key_of(split, name): each for name, each in configs.items()}
    is_indexed = choose_reader(named, index.parts, is_mixture=slots is not None) == "indexed"
    parts, orders = list[_Part](), list[Order]()
    of_each = zip(configs.items(), index.parts, index.first_shards.tolist(), strict=True)
    for (name, each), shards, first in of_each:
        with errors_about(key_of(split, name), ConfigError, ShardNotFoundError):
            parts.append(_make_part(data, name, each, shards, first if is_indexed else None))
            orders += [_order_of(data, each, parts[-1])] if is_indexed else []
    _require_same_classes(parts)
    _warn_of_absent(parts)
    recipes = agreed_recipes([part.recipe for part in parts], of_both["collation"])
    if not is_indexed:
        from lightning_shards.readers.stream import StreamSource

        sampling = next(iter(configs.values())).sampling or "sequential"
        storages = _storages(data, index, ranks)
        return StreamSource(**of_both, recipes=recipes, sampling=sampling, storages=storages)
    order = make_order(slots, index.parts, recipes, orders) if slots else orders[0]
    cache = _cache_of(data, split, index, order, ranks, nodes)
    return IndexedSource(
        **of_both,
        recipes=recipes,
        order=order,
        cache=CacheFolder(data.loader.cache_dir),
        storages=_storages(data, index, ranks, cache),
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
        "max_bad": config.max_bad or None,
        "collation": data.collation_of(split),
    }


def choose_reader(
    configs: Mapping[str, SplitConfig], indexes: Sequence[ShardIndex], *, is_mixture: bool
) -> Literal["stream", "indexed"]:
    """The one reader of these components, or of the one data set that is no mixture.

    Args:
        configs: Their settings, by what messages call them.
        indexes: Their shards.
        is_mixture: Whether they are those of a mixture.

    Raises:
        ConfigError: One cannot be read by the reader that is asked for, or serves each sample once
            and the mixture has to be streamed.
    """
    of_each = zip(configs.items(), indexes, strict=True)
    reasons = [
        why for (key, config), index in of_each if (why := _why_streamed(key, config, index))
    ]
    if not reasons:
        return "indexed"
    for key, config in configs.items() if is_mixture else ():
        if config.sampling != "resampled":
            raise ConfigError(
                f"{key} has sampling={config.sampling!r}, and a mixture that is streamed "
                f"cannot serve each sample once a pass; it is streamed because {reasons[0]}: take "
                "sampling='resampled' for it, or make all components local or put member tables "
                "beside them, without stages"
            )
    return "stream"


def _why_streamed(key: str, config: SplitConfig, index: ShardIndex) -> str:
    """Why these shards are read by the stream reader; empty if by the indexed one."""
    if config.reader == "stream":
        return "of reader='stream'"
    remote = one_of_each_scheme(index.urls)
    streamed = next((url for url in remote if not has_ranges(url)), "")
    made = f"{index_command(config.patterns)} makes them"
    obstacles = (
        (config.stages, "has stages", "use transforms"),
        (streamed, f"has {redact(streamed)}, which can only be streamed", "copy it"),
        (index.counts is None, "has no counts of samples beside its shards", made),
        (remote and not index.has_tables, "is remote, without member tables beside it", made),
    )
    what, remedy = next((obstacle[1:] for obstacle in obstacles if obstacle[0]), ("", ""))
    if what and config.reader == "indexed":
        raise ConfigError(
            f"reader='indexed' of {key!r} reads samples by their offsets, and the split {what}; "
            f"{remedy}, or take reader='stream'"
        )
    return what and f"{key} {what}"


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
    fields = {field.name: field for field in part.recipe.fields}
    read_by = CacheFolder(data.loader.cache_dir), _storages(data, index)
    if config.balance:
        from lightning_shards.build.orders import ClassLabels

        joins = part.joined.joins if part.joined else ()
        joins = tuple(join for join in joins if join.settings.name == config.balance)
        labels = ClassLabels(index, fields[config.balance], joins, *read_by)
        order: Order = labels.order(config.balance_weights or {}, seed)
    else:
        mixed = config.shuffle_run, config.shuffle_block
        order = SampleOrder(counts, seed, config.sampling or "sequential", *mixed)
        if config.shuffle_strands > 1:
            order = StrandOrder(order, config.shuffle_strands, config.shuffle_width)
        order = order if index.kept is None else KeptOrder(order, index.kept)
    if (alike := config.batch_alike) is None:
        return order
    from lightning_shards.build.orders import MemberSizes

    suffixes = fields[alike.field].suffixes
    sizes = MemberSizes(suffixes, index, *read_by)
    return AlikeOrder(order, seed, alike.group, ";".join(suffixes), sizes)


def _require_same_classes(parts: Sequence[_Part]) -> None:
    """Check that no label has one number in one component and another one in the next.

    Raises:
        ConfigError: The classes of a field differ.
    """
    found: dict[str, list[ClassNames]] = {}
    for part in parts:
        for field in part.recipe.fields:
            if (classes := field.classes) is not None:
                source = f"{classes.source} of component {part.name!r}"
                found.setdefault(field.name, []).append(replace(classes, source=source))
    for of_field in found.values():
        same_classes(of_field)


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
    if loader.pool != "processes" or loader.multiprocessing_context != "fork":
        return
    joins = (join for config in configs for join in join_settings(config.join or {}))
    remote = one_of_each_scheme([*index.urls, *(url for join in joins for url in join.table)])
    for scheme in map(scheme_of, remote):
        if data.num_workers and scheme in SCHEMES and SCHEMES[scheme].client == "cloud":
            raise ConfigError(
                f"multiprocessing_context='fork' does not go with {scheme}:// shards, whose client "
                "does not survive a fork; take 'forkserver' or 'spawn'"
            )


def _storages(
    data: DataConfig, index: ShardIndex, ranks: int = 1, cache: PieceCache | None = None
) -> dict[str, MakeStorage] | None:
    """What reads the shards of a split if some are remote, through this cache."""
    is_remote = not all(map(is_local, index.urls))
    return remote_storages(transport_settings(data, ranks), cache) if is_remote else None


def _cache_of(
    data: DataConfig, split: SplitName, index: ShardIndex, order: Order, ranks: int, nodes: int
) -> PieceCache | None:
    """The cache of a run for the remote shards of a split, with room for what all ranks prepare."""
    loader, folder = data.loader, CacheFolder(data.loader.cache_dir)
    batch_size = data.split(split).batch_size or 1
    need = need_of_source(
        index,
        order,
        folder,
        transport_settings(data, ranks),
        prepared=ranks * batch_size * max(1, data.num_workers * loader.threads_per_worker),
        messages=ranks * data.num_workers * loader.prefetch_factor,
        batch_size=batch_size,
        nodes=nodes,
    )
    run = f"{job_name(ranks)} {split} {order.identity()['seed']} {loader.cache_gib}"
    return need and cache_of_run(folder, run, need, loader.cache_gib)


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
        raise ConfigError(
            f"sampling={sampling!r} of {split!r} needs the number of samples, and its remote "
            "shards have no wids JSON or sizes.json beside them; put one there, or, under "
            "sampling='resampled', set dataset_size"
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
