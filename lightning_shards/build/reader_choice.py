"""The choice of a split's reader, by what is asked for and by what lies beside its shards."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Literal

from lightning_shards.config.splits import SplitConfig
from lightning_shards.errors import ConfigError, StorageError
from lightning_shards.remote.backend import LOOK_UP, TransportSettings
from lightning_shards.remote.storage import remote_storages
from lightning_shards.shards.counts import load_index, remote_class_files, shards_listed
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.published_tables import absence, index_command, published_url
from lightning_shards.shards.scheme_table import SCHEMES, has_ranges
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact, scheme_of

_log = logging.getLogger(__name__)


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
    what, remedy = _obstacle(config, index)
    if what and config.reader == "indexed":
        raise ConfigError(
            f"reader='indexed' of {key!r} reads samples by their offsets, and the split {what}; "
            f"{remedy}, or take reader='stream'"
        )
    return what and f"{key} {what}"


def _obstacle(config: SplitConfig, index: ShardIndex) -> tuple[str, str]:
    """What keeps the indexed reader from these shards, and the remedy."""
    remote = _one_of_each_scheme(index.urls)
    streamed = next((url for url in remote if not has_ranges(url)), "")
    made = f"{index_command(config.patterns)} makes them"
    obstacles = {
        ("has stages", "use transforms"): config.stages,
        (f"has {redact(streamed)}, which can only be streamed", "copy it"): streamed,
        ("has no counts of samples beside its shards", made): index.counts is None,
        ("is remote, without member tables beside it", made): remote and not index.has_tables,
    }
    return next((obstacle for obstacle, is_there in obstacles.items() if is_there), ("", ""))


def find_index(
    key: str,
    config: SplitConfig,
    urls: Sequence[str],
    settings: TransportSettings,
    *,
    wants_classes: bool,
) -> ShardIndex:
    """The index of these shards, which says whether remote ones have tables, if that matters.

    Args:
        key: What messages call the split or component.
        config: Its settings.
        urls: Expanded urls of its shards.
        settings: How remote shards are reached, and where counts and tables are kept.
        wants_classes: Whether a field needs the classes that lie beside the shards.

    Raises:
        ShardError: The shards or what `indexed` needs cannot be found.
    """
    cache, wants_total = CacheFolder(settings.cache_dir), config.dataset_size is None
    with closing(Storages(remote_storages(replace(settings, policy=LOOK_UP)))) as storages:
        urls = [shard for url in urls for shard in shards_listed(url, storages)]
        remote = _one_of_each_scheme(urls)
        index = load_index(urls, cache=cache, wants_total=wants_total, storages=storages)
        is_exact = config.reader == "indexed" or config.sampling != "resampled"
        if index.counts is None and (is_exact or (wants_total and index.total is None)):
            for url in filter(has_ranges, remote[:1]):  # perhaps its URL is wrong
                storages.of(url).stat(url)
        could_be_indexed = not _obstacle(config, replace(index, has_tables=True))[0]
        if remote and config.reader != "stream" and could_be_indexed:
            store = TableStore(cache, storages=storages)
            has_tables = _has_tables(key, config, remote[0], store, storages)
            index = replace(index, has_tables=has_tables)
        if wants_classes:
            index = replace(index, class_files=remote_class_files(urls, storages))
    return index


def _has_tables(
    key: str, config: SplitConfig, url: str, store: TableStore, storages: Storages
) -> bool:
    """Whether the first remote shard has a member table, which stands for those of all.

    What is kept of a run before decides nothing under `auto`, or two machines would choose two
    readers.
    """
    has_tables, is_asked_for = False, config.reader == "indexed"
    try:
        has_tables = is_published(url, store, storages, or_kept=is_asked_for)
    except StorageError as error:
        if is_asked_for:
            raise
        _log.warning("%s: no member table of a shard can be had: %s", key, error)
    if is_asked_for and not has_tables:
        raise ConfigError(f"{key}: {absence(url, config.patterns)}")
    taken = "the stream reader, because there are no member tables beside %s; %s makes them"
    if has_tables:
        taken = "the indexed reader, by the member tables beside %s, which %s makes"
    about = redact(url), index_command(config.patterns)
    _log.info(f"%s: reader=%r takes {taken}", key, config.reader, *about)
    return has_tables


def _one_of_each_scheme(urls: Sequence[str]) -> list[str]:
    """The first remote shard of each scheme; there may be 10^6 shards."""
    firsts: dict[str, str] = {}
    for url in urls:
        firsts.setdefault(scheme_of(url), url)
    return [url for url in firsts.values() if not is_local(url)]


def is_published(url: str, store: TableStore, storages: Storages, *, or_kept: bool = False) -> bool:
    """Whether there is a table beside this remote shard, which is then kept in the store.

    With `or_kept` one that is kept is enough.

    Raises:
        ShardError: There is one that cannot be used, or no answer.
    """
    is_there = or_kept and not store.missing([url])
    if is_there or storages.of(url).read_beside([published_url(url)], 1)[0][0] is not None:
        store.fetch([url])
        return True
    return False


def require_forkable(urls: Sequence[str]) -> None:
    """Refuse to fork workers that read by a client which does not survive a fork.

    Raises:
        ConfigError: Some shards are read by such a client.
    """
    for scheme in map(scheme_of, _one_of_each_scheme(urls)):
        if scheme in SCHEMES and SCHEMES[scheme].client == "cloud":
            raise ConfigError(
                f"multiprocessing_context='fork' does not go with {scheme}:// shards, whose client "
                "does not survive a fork; take 'forkserver' or 'spawn'"
            )
