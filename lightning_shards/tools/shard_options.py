"""Options of the tools that read local and remote shards, and the names of their classes."""

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from lightning_shards.errors import ConfigError, StorageError
from lightning_shards.shards.beside import json_object
from lightning_shards.shards.classes import CLASS_SUFFIX, ClassNames, known_classes
from lightning_shards.shards.index import remote_class_files
from lightning_shards.shards.remote.backend import require_store_options
from lightning_shards.shards.remote.proxies import require_shards
from lightning_shards.shards.remote.retries import LOOK_UP
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.remote import remote_storages
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import expand_urls

_CONNECTIONS: Final = 64
"""Requests that all processes together have under way at most."""


def add_shard_options(parser: ArgumentParser) -> None:
    """Add the options that decide which URLs may be opened, and how stores are reached."""
    parser.add_argument(
        "--storage-options",
        type=_storage_options,
        default={},
        metavar="JSON",
        help="of remote shards: how their stores are reached, as in the configuration, such as "
        '\'{"s3": {"endpoint": "https://host", "region": "eu-central-1"}}\'',
    )
    parser.add_argument(
        "--allow-unsafe",
        action="append",
        default=[],
        choices=("pipe",),
        help="pipe: run the shell commands of pipe: URLs, which are refused otherwise",
    )


def shards_of(options: Namespace) -> list[str]:
    """The shards that the user named, each once.

    Raises:
        ShardError: A pattern cannot be read, or a shard cannot exist.
    """
    return require_shards(expand_urls(options.urls, allow_pipe="pipe" in options.allow_unsafe))


def settings_of(options: Namespace) -> TransportSettings:
    """How one of the processes of a tool reaches remote shards."""
    connections = max(1, _CONNECTIONS // max(1, options.processes))
    return TransportSettings(
        options.storage_options, connections, cache_dir=str(options.cache.root)
    )


def classes_of(
    urls: Sequence[str], field: str | None, storage_options: Mapping[str, Any] | None = None
) -> ClassNames | None:
    """The classes of a field of these shards, if they are known; a note says if they are unclear.

    Only the field `cls` has any, because `classes.json` belongs to it. `storage_options` say how
    the stores of remote shards are reached.
    """
    if field != CLASS_SUFFIX:
        return None
    try:
        return classes_in_folders_of(urls, TransportSettings(storage_options or {}))
    except (ConfigError, StorageError) as error:
        print(f"note: names of classes are not shown: {error}", file=sys.stderr)
        return None


def classes_in_folders_of(urls: Sequence[str], settings: TransportSettings) -> ClassNames | None:
    """The classes in the folders of these shards, local or remote; None if there are none.

    Raises:
        ConfigError: Two folders have different ones.
        ShardError: A store does not answer.
    """
    look_up = remote_storages(replace(settings, policy=LOOK_UP))
    with closing(Storages(look_up)) as storages:
        return known_classes(urls, remote_class_files(urls, storages))


def _storage_options(text: str) -> dict[str, dict[str, Any]]:
    """By scheme the options of its store."""
    try:
        given = json_object(json.loads(text))
        for scheme, options in given.items():
            require_store_options(scheme, json_object(options))
    except (ValueError, RecursionError) as error:  # also a ConfigError
        raise ArgumentTypeError(str(error)) from None
    return given


def with_class_name(text: str, classes: ClassNames | None) -> str:
    """The text of a label, with the name of the class that has this number."""
    name = "" if classes is None else classes.name_of(text)
    return f"{text} {name}" if name else text
