"""What is known of the shards of a split before a sample is read: counts, tables, classes."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace

from lightning_shards.config.module import DataConfig
from lightning_shards.config.splits import SplitConfig, SplitName
from lightning_shards.errors import (
    ConfigError,
    ShardNotFoundError,
    StorageError,
    count_of,
    errors_about,
)
from lightning_shards.remote.backend import LOOK_UP, RetryPolicy, TransportSettings
from lightning_shards.remote.storage import remote_storages
from lightning_shards.samples.fields import lack_classes
from lightning_shards.shards.classes import (
    CLASSES,
    ClassNames,
    found_classes,
    known_classes,
    same_classes,
)
from lightning_shards.shards.counts import load_index, remote_class_files, shards_listed
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.filters.settings import sample_filter
from lightning_shards.shards.index import ShardIndex, join_indexes
from lightning_shards.shards.patterns import expand_urls
from lightning_shards.shards.scheme_table import has_ranges
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore, absence, index_command, published_url
from lightning_shards.shards.urls import is_local, redact, scheme_of, split_url

_log = logging.getLogger(__name__)


def key_of(split: SplitName, component: str) -> str:
    """What messages call a component, or a data set alone, whose `component` is empty."""
    return f"{split}.mix.{component}" if component else split


def find_shards(data: DataConfig, split: SplitName) -> ShardIndex:
    """The shards of a split and what is known of their counts; those of local ones are counted.

    Raises:
        ShardError: The split is not configured, or its shards cannot be found or counted.
    """
    found: list[ShardIndex] = []
    config = data.split(split)
    for name, part in config.component_splits().items():
        with errors_about(key_of(split, name), ConfigError, ShardNotFoundError):
            found.append(_find(data, part, key_of(split, name)))
    return join_indexes(found) if config.mix else found[0]


def _find(data: DataConfig, config: SplitConfig, key: str) -> ShardIndex:
    """The shards of a split or of a component with these settings; `key` is for messages."""
    named = _urls_of(data, config)
    local = next(filter(is_local, named), None)
    if config.index is not None and local is not None:
        raise ConfigError(
            f"index={config.index!r} of {key!r} is for remote shards, and {redact(local)} is "
            "of this machine, where indexes lie beside shards; leave it out"
        )
    cache, settings = CacheFolder(data.loader.cache_dir), transport_settings(data)
    chosen = sample_filter(config.keep, config.exclude)
    with closing(Storages(remote_storages(replace(settings, policy=LOOK_UP)))) as storages:
        urls = [shard for url in named for shard in shards_listed(url, storages)]
        remote, tables = one_of_each_scheme(urls), TableStore(cache, storages=storages)
        index = _counted(config, urls, remote, cache, storages)
        if remote and index.counts is not None and all(map(has_ranges, remote)):
            is_needed = chosen is not None or config.reader == "indexed"
            of_first = _has_tables(key, config, remote[0], storages, tables, is_needed=is_needed)
            index = replace(index, has_tables=of_first)
        if remote and lack_classes(data.fields_from(config)):
            index = replace(index, class_files=remote_class_files(urls, storages))
        if chosen is None:
            return index
        if remote and not index.has_tables:
            raise ConfigError(
                f"{chosen.names} of {key!r} needs the member tables of the shards, and "
                f"{redact(remote[0])} has no member table or no count beside it; make them by "
                f"{index_command(config.patterns)}, copy the shards to a store that gives ranges, "
                "or leave samples out by a function in `stages`"
            )
        from lightning_shards.shards.filters.applying import filtered_index

        return filtered_index(index, chosen, tables, cache)


def _urls_of(data: DataConfig, config: SplitConfig) -> list[str]:
    """The shards that a split or component names, expanded."""
    return expand_urls(config.urls or [], allow_pipe="pipe" in (data.allow_unsafe or ()))


def one_of_each_scheme(urls: Iterable[str]) -> list[str]:
    """The first remote shard of each scheme; there may be 10^6 shards."""
    firsts: dict[str, str] = {}
    for url in urls:
        firsts.setdefault(scheme_of(url), url)
    return [url for url in firsts.values() if not is_local(url)]


def _counted(
    config: SplitConfig,
    urls: list[str],
    remote: list[str],
    cache: CacheFolder,
    storages: Storages,
) -> ShardIndex:
    """The index of these shards; where a number that is needed is unknown, a remote one is there.

    Raises:
        ShardError: The shards cannot be found or counted.
    """
    wants_total = config.dataset_size is None
    index = load_index(urls, cache=cache, wants_total=wants_total, storages=storages)
    is_exact = config.reader == "indexed" or config.sampling != "resampled"
    if index.counts is None and (is_exact or (wants_total and index.total is None)):
        for url in filter(has_ranges, remote[:1]):  # perhaps its URL is wrong
            storages.of(url).stat(url)
    return index


def _has_tables(
    key: str,
    config: SplitConfig,
    url: str,
    storages: Storages,
    tables: TableStore,
    *,
    is_needed: bool,
) -> bool:
    """Whether the first remote shard has a member table, which stands for those of all.

    What is kept of a run before decides nothing under `auto`, or two machines would choose two
    readers.

    Raises:
        ConfigError: There is none, and reader='indexed' asks for it.
        ShardError: There is one that cannot be used, or no answer.
    """
    is_chosen_by_it = config.reader != "stream" and not config.stages
    has_tables = is_needed and not tables.missing([url])
    if has_tables or not (is_needed or is_chosen_by_it):
        return has_tables
    try:
        beside = storages.of(url).read_beside([published_url(url)], 1)[0][0]
        if beside is not None:
            tables.fetch([url])
            has_tables = True
    except StorageError as error:
        if is_needed:
            raise
        _log.warning("%s: no member table of a shard can be had: %s", key, error)
    if config.reader == "indexed" and not has_tables:
        raise ConfigError(f"{key}: {absence(url, config.patterns)}")
    if is_chosen_by_it:
        which = "indexed reader, by the" if has_tables else "stream reader, because there are no"
        taken = f"{key}: reader={config.reader!r} takes the {which} member tables"
        made = index_command(config.patterns)
        _log.info("%s beside %s, which %s makes", taken, redact(url), made)
    return has_tables


def transport_settings(data: DataConfig, ranks: int = 1) -> TransportSettings:
    """How a worker of so many ranks of a node reaches remote shards, by its own connections."""
    config = data.loader
    workers = 1 if config.pool == "inline" else data.num_workers * config.threads_per_worker
    connections = max(1, config.connections // (ranks * max(1, workers)))
    indexes: dict[str, str] = {}
    for split in data.splits.values():
        for part in split.component_splits().values() if split is not None else ():
            if part.index is not None:
                folders = {split_url(url)[0] for url in _urls_of(data, part)}
                indexes |= dict.fromkeys(folders, part.index)
    store = config.storage_options, connections, RetryPolicy()
    return TransportSettings(*store, cache_dir=config.cache_dir, indexes=indexes)


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


def warn_of_other_numbers(split: SplitName, indexes: Mapping[SplitName, ShardIndex]) -> None:
    """Warn if a class has another number in a folder of this split than elsewhere in the run.

    Of remote shards only those are compared whose classes were looked up. `indexes` are those of
    this split and of others.
    """
    known: dict[str, tuple[int, str]] = {}
    for name in [*(other for other in indexes if other != split), split]:
        for classes in found_classes(indexes[name].urls, indexes[name].class_files):
            for label, number in classes.numbers.items():
                before, source = known.setdefault(label, (number, classes.source))
                if before != number and name == split:
                    _log.warning(
                        "the class %r has the number %d by %s and %d by %s, so that labels of %s "
                        "do not mean the same everywhere; pack one of the two anew with --classes "
                        "and the %s of the other",
                        *(label, before, source, number, classes.source, split, CLASSES),
                    )
                    return


def names_of_classes(data: DataConfig) -> list[str]:
    """The names of the classes of the first split, in the order of their numbers.

    They are those in `classes`, or in the `classes.json` beside its shards, none of which is read.
    A number without a class has an empty name.

    Raises:
        ConfigError: No classes are known, or two fields or components have different ones.
        ShardError: A store does not answer, or no shard has such a name.
    """
    split = next((name for name, config in data.splits.items() if config is not None), "train")
    parts = data.split(split).component_splits().values()
    classes = same_classes([each for part in parts for each in _classes_of(data, part)])
    if classes is None:
        raise ConfigError(
            f"the classes of {split} are unknown: it has no `classes`, and beside its shards is no "
            f"{CLASSES} that can be read; name them, as in classes: {{label: [cat, dog]}}"
        )
    return [classes.name_of(str(number)) for number in range(max(classes.numbers.values()) + 1)]


def _classes_of(data: DataConfig, config: SplitConfig) -> list[ClassNames]:
    """The classes of the fields of a split or a component, as far as they are known."""
    fields = data.fields_from(config)
    known = [field.classes for field in fields if field.classes is not None]
    if known and not lack_classes(fields):
        return known
    urls = _urls_of(data, config)
    with closing(Storages(remote_storages(transport_settings(data)))) as storages:
        beside = known_classes(urls, remote_class_files(urls, storages))
    return known if beside is None else [*known, beside]
