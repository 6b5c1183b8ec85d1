"""Options of the tools that read local and remote shards."""

from argparse import ArgumentParser, Namespace

from lightning_shards.shards.storage.fetching import require_shards
from lightning_shards.shards.urls import expand_urls


def add_shard_options(parser: ArgumentParser) -> None:
    """Add the options that decide which URLs may be opened."""
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
