"""Options of the tools that say which samples are left, and how many they are."""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any

from lightning_shards.build.sources import FilterNeeds, index_of_kept
from lightning_shards.config.parsing import load_callable
from lightning_shards.shards.beside import json_object
from lightning_shards.shards.filters.predicates import names_callable, sample_filter
from lightning_shards.shards.index import load_index
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.remote import remote_storages
from lightning_shards.shards.storage.schemes import Storages


def filter_option(text: str) -> Any:
    """What `keep` of a split is, from the command line: YAML, and so JSON, or an import path."""
    from yaml import YAMLError, safe_load

    try:
        given = json_object(safe_load(text)) if text.lstrip().startswith("{") else text
        keep = load_callable("--keep", given) if names_callable(given) else given
        sample_filter(keep, None)
    except (ValueError, RecursionError, YAMLError) as error:  # also a ConfigError
        raise ArgumentTypeError(" ".join(str(error).split())) from None
    return keep


def samples_left(urls: Sequence[str], options: Namespace) -> int | None:
    """How many samples `--keep` and `--exclude` leave of these shards; None if neither is given.

    Raises:
        ConfigError: The filter names what is not there, leaves nothing, or needs member tables.
        ShardError: The shards cannot be counted.
    """
    chosen = sample_filter(options.keep, options.exclude)
    if chosen is None:
        return None
    settings = TransportSettings(options.storage_options, cache_dir=str(options.cache.root))
    storages = Storages(remote_storages(settings))
    try:
        index = load_index(urls, cache=options.cache, storages=storages)
    finally:
        storages.close()
    needs = FilterNeeds(
        "the shards", "sequential", has_size=False, patterns="::".join(options.urls)
    )
    kept = index_of_kept(index, chosen, needs, options.cache, settings).kept_samples
    assert kept is not None  # otherwise exact sampling is refused
    return kept
