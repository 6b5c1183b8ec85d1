"""The options that tools share, and their output: errors in one line, findings, tables.

Exit codes: 0: done, and nothing is wrong. 1: done, and the data has faults. 2: not done, or not for
all shards, because the bytes of some could not be had.
"""

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, cast

from tqdm import tqdm

from lightning_shards.dataprep.survey import Finding
from lightning_shards.errors import ShardError
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.shards.counts import json_object
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.patterns import expand_urls, require_local_shards
from lightning_shards.shards.scheme_table import require_store_options
from lightning_shards.system.process import num_cpus

FAILED: Final = 1
REFUSED: Final = 2

_MAX_LISTED = 20  # of the values of a list, the named rows of a table, the findings of a rule
_WHOLE = 1000  # from which on numbers have no decimals

_CONNECTIONS: Final = 64
"""Requests that all processes together have under way at most."""


def run_tool(name: str, run: Callable[[Namespace], int], options: Namespace) -> None:
    """Run a tool and exit with what it returns; an error is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names may not be UTF-8, or not the terminal's
            stream.reconfigure(errors="backslashreplace")
    try:
        status = run(options)
    except (ShardError, OSError, KeyboardInterrupt) as error:
        is_ctrl_c = isinstance(error, KeyboardInterrupt)
        message = "interrupted" if is_ctrl_c else " ".join(str(error).split())
        print(f"lightning-shards {name}: {message}", file=sys.stderr)
        status = REFUSED
    if status:
        sys.exit(status)


def at_least(least: float) -> Callable[[str], float]:
    """The type of an option that is a number of the type of `least`, and not below it."""

    def number(text: str) -> float:
        given = type(least)(text)
        if given < least:
            raise ArgumentTypeError(f"must be at least {least}, got {text}")
        return given

    return number


def tool_parser(name: str, description: str, epilog: str) -> ArgumentParser:
    """A parser that shows the lines of `epilog` as they are."""
    return ArgumentParser(
        prog=f"lightning-shards {name}",
        description=description,
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def config_parser(name: str, description: str, epilog: str, **of_config: Any) -> ArgumentParser:
    """A parser with the options of every tool that reads a configuration.

    `of_config` says how argparse takes the option `--config`.
    """
    parser = tool_parser(name, description, epilog)
    parser.add_argument("--config", type=Path, help="a YAML with a section `data`", **of_config)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def epoch_parser(name: str, description: str, epilog: str) -> ArgumentParser:
    """A parser with the options of every tool that looks into an epoch of a configuration."""
    parser = config_parser(name, description, epilog, required=True)
    add, ranks = parser.add_argument, "ranks; default: of the config's trainer"
    add("--split", default="train", help="train, val, test or predict; or a set: val/NAME")
    add("--world-size", type=at_least(1), metavar="N", help=ranks)
    return parser


def add_run_options(parser: ArgumentParser) -> None:
    """Add the options of every tool that runs over shards in processes."""
    add, cpus, cache = parser.add_argument, num_cpus(), CacheFolder()
    add("--processes", type=at_least(1), default=cpus, metavar="N", help="default: all processors")
    kept = "where member tables are kept; default: ~/.cache/lightning_shards"
    add("--cache-dir", dest="cache", type=CacheFolder, default=cache, metavar="DIR", help=kept)
    add("--json", action="store_true", help="print one JSON document")


def shard_parser(name: str, description: str, epilog: str) -> ArgumentParser:
    """A parser with the options of every tool that reads shards."""
    parser = tool_parser(name, description, epilog)
    add = parser.add_argument
    add("urls", nargs="+", help="shards: paths with braces or wildcards, several joined by ::")
    add_run_options(parser)
    stores = (
        "of remote shards: how their stores are reached, as in the configuration, such as "
        '\'{"s3": {"endpoint": "https://host", "region": "eu-central-1"}}\''
    )
    add("--storage-options", type=_storage_options, default={}, metavar="JSON", help=stores)
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


def report(document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a document as JSON, or as text: single values in a line each, and rows in tables."""
    if as_json:
        print(json.dumps(document))
        return
    for name, value in document.items():
        if name == "findings":
            _print_findings(value)
        elif rows := _rows_of(value):
            print(f"\n{_table(rows)}")
            if len(value) > len(rows):
                print(f"and {len(value) - len(rows):,} more, see --json")
        elif value is not None and value != {}:
            print(f"{name}: {_show(name, value)}")


def _rows_of(value: Any) -> list[dict[str, Any]]:
    """The rows of a table: all of a list, or the first of a dict, with their names before them."""
    if isinstance(value, dict):
        named = list(cast("dict[str, Any]", value).items())[:_MAX_LISTED]
        value = [{"name": name, **row} for name, row in named if isinstance(row, dict)]
    rows = cast("list[Any]", value if isinstance(value, list) else [])
    return [row for row in rows if isinstance(row, dict)]


def _print_findings(findings: Sequence[Mapping[str, Any]]) -> None:
    """Print findings with their locations, faults first."""
    listed: Counter[str] = Counter()
    for finding in sorted(findings, key=lambda finding: not finding["is_failure"]):
        rule, message, shard, byte = (finding[of] for of in ("rule", "message", "shard", "byte"))
        listed[rule] += 1
        if listed[rule] > _MAX_LISTED:
            continue
        kind = "wrong" if finding["is_failure"] else "note"
        where = f"{shard}: " if shard and shard not in message else ""
        place = "" if byte is None or "at byte" in message else f" (byte {byte})"
        print(f"{kind}: {rule}: {where}{printable(message)}{place}")
    for rule, count in listed.items():
        if count > _MAX_LISTED:
            print(f"      {rule}: {count - _MAX_LISTED:,} more, see --json")


def _show(name: str, value: Any) -> str:
    """A value of a document as text; its name says the unit."""
    if value is None:
        return "unknown"
    if isinstance(value, dict):
        value = [f"{key} {_show(name, each)}" for key, each in cast("Any", value).items()]
    if isinstance(value, list | tuple):
        texts = [printable(str(each)) for each in cast("Any", value)[:_MAX_LISTED]]
        more = len(cast("Any", value)) - len(texts)
        return ", ".join(texts + [f"and {more:,} more"] * (more > 0)) or "none"
    if isinstance(value, str | bool):
        return printable(str(value))
    if "bytes" in name:
        return tqdm.format_sizeof(value, "B")
    return f"{value:.4g}" if isinstance(value, float) and value < _WHOLE else f"{value:,.0f}"


def printable(text: str) -> str:
    """The text, with escapes for letters that cannot be shown, such as control characters."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first column to the left and all others to the right."""
    lines = [list(rows[0]), *([_show(*each) for each in row.items()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
