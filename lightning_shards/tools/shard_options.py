"""Options of the tools that read local and remote shards, and what their findings mean."""

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import Any, Final

from lightning_shards.dataprep.survey import Finding
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.shards.counts import json_object
from lightning_shards.shards.patterns import expand_urls, require_local_shards
from lightning_shards.shards.scheme_table import require_store_options
from lightning_shards.tools.console import FAILED, REFUSED, add_run_options, tool_parser

_CONNECTIONS: Final = 64
"""Requests that all processes together have under way at most."""


def shard_parser(name: str, description: str, epilog: str) -> ArgumentParser:
    """A parser with the options of every tool that reads shards."""
    parser = tool_parser(name, description, epilog)
    add = parser.add_argument
    add("urls", nargs="+", help="shards: paths with braces or wildcards, several joined by ::")
    add_run_options(parser, "where member tables are kept; default: ~/.cache/lightning_shards")
    add(
        "--storage-options",
        type=_storage_options,
        default={},
        metavar="JSON",
        help="of remote shards: how their stores are reached, as in the configuration, such as "
        '\'{"s3": {"endpoint": "https://host", "region": "eu-central-1"}}\'',
    )
    return parser


def status_of(failures: Sequence[Finding]) -> int:
    """The exit status that these faults give: `REFUSED` if all are shards that were not read."""
    if all(finding.rule == "unread shard" for finding in failures):
        return REFUSED if failures else 0
    return FAILED


def shards_of(options: Namespace) -> list[str]:
    """The shards that the user named, each once.

    Raises:
        ShardError: A pattern cannot be read, or a local shard does not exist.
    """
    urls = expand_urls(options.urls)
    require_local_shards(urls)
    return list(dict.fromkeys(urls))


def settings_of(options: Namespace) -> TransportSettings:
    """How one of the processes of a tool reaches remote shards."""
    connections = max(1, _CONNECTIONS // options.processes)
    return TransportSettings(
        options.storage_options, connections, cache_dir=str(options.cache.root)
    )


def _storage_options(text: str) -> dict[str, dict[str, Any]]:
    """By scheme the options of its store."""
    try:
        given = json_object(json.loads(text))
        for scheme, options in given.items():
            require_store_options(scheme, json_object(options))
    except (ValueError, RecursionError) as error:  # also a ConfigError
        raise ArgumentTypeError(str(error)) from None
    return given
