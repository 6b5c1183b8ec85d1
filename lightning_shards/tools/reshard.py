"""`lightning-shards reshard`: cuts, merges, shuffles, sorts or edits shards into new ones."""

import hashlib
import inspect
import pickle
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from lightning_shards.dataprep.rewriting import Edit
from lightning_shards.errors import ConfigError
from lightning_shards.tools.console import run_tool
from lightning_shards.tools.output_options import list_local_tars, output_parser, write_and_report

_EPILOG = """\
  lightning-shards reshard 'old-{000..999}.tar' --order shuffled --seed 1 --out new
  lightning-shards reshard 'old-*.tar' --num-shards 64 --map my_module:smaller --out new
  lightning-shards reshard 'old-*.tar' --filter my_module:is_sharp --keep 0.1 --out new

A function takes a sample, a dict of `__key__` and the bytes of each field. That of --filter says
whether the sample is kept; that of --map gives the sample to write, with the same key. Both must
always give the same for the same sample. Samples are read one at a time from where they are, so
only the list of them is in memory (about 600 bytes each). Members of a sample that are apart in a
tar are joined, a link in the place of one is refused, and hidden files such as ._x of macOS are
left out. Tars are held against the indexes beside them and in the cache folder, and one that
differs is refused: index it again if that was meant. A classes.json beside the shards is written
beside the new ones, too.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    description = "Write the samples of shards to other shards, with their index."
    parser = output_parser("reshard", description, _EPILOG, order="source")
    add = parser.add_argument
    add("urls", nargs="+", help="local tars: paths with braces or wildcards")
    add("--filter", metavar="FUNCTION", help="import path of a function: keep the sample?")
    add("--map", metavar="FUNCTION", help="import path of a function: the sample to write")
    run_tool("reshard", _reshard, parser.parse_args(arguments))


def _reshard(options: Namespace) -> int:
    keeps, filter_code = load_function(options.filter)
    transform, map_code = load_function(options.map)
    edit = Edit(transform=transform, keeps=keeps, settings={"filter": filter_code, "map": map_code})
    write_and_report(options, list_local_tars(options, options.urls), edit)
    return 0


def load_function(path: str | None) -> tuple[Callable[[dict[str, Any]], Any] | None, list[str]]:
    """A function by its import path, and its identity: the path and the digest of its file.

    Raises:
        ConfigError: There is no such function, another process could not import it, or its module
            raises an error or exits.
    """
    if path is None:
        return None, []
    sys.path.insert(0, str(Path.cwd()))  # finds functions of this folder
    try:
        function = resolve_name(path)
        pickle.dumps(function)
    except (Exception, SystemExit) as error:  # whatever its module does as it is imported
        raise ConfigError(
            f"{path!r} names no function that can be imported: {type(error).__name__}: {error}; "
            "write my_module:my_function, and correct its module"
        ) from error
    if not callable(function):
        raise ConfigError(f"{path!r} is no function but {type(function).__name__}; name a function")
    try:
        code = Path(inspect.getfile(inspect.unwrap(function))).read_bytes()
    except (TypeError, OSError):
        code = b""  # built in
    return function, [path, hashlib.sha256(code).hexdigest()[:16]]
