"""`lightning-shards reshard`: cuts, merges, shuffles or edits shards into new ones."""

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
from lightning_shards.tools.pack import list_local_tars, output_parser, write_and_report

_EPILOG = """\
  lightning-shards reshard 'old-{000..999}.tar' --order shuffled --seed 1 --out new
  lightning-shards reshard 'old-*.tar' --max-samples 10000 --map my_module:smaller --out new
  lightning-shards reshard 'old-*.tar' --filter my_module:is_sharp --out new

A function takes a sample, a dict of `__key__` and the bytes of each field, and always gives the
same for it: that of --filter whether it is kept, that of --map the sample to write, with the same
key. Members of a sample that are apart in a tar are joined.
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
    keeps, filter_code = _load_function(options.filter)
    transform, map_code = _load_function(options.map)
    edit = Edit(transform=transform, keeps=keeps, settings={"filter": filter_code, "map": map_code})
    return write_and_report(options, list_local_tars(options, options.urls), edit)


def _load_function(path: str | None) -> tuple[Callable[[dict[str, Any]], Any] | None, list[str]]:
    """A function by its import path, and its identity: the path and the digest of its file."""
    if path is None:
        return None, []
    sys.path.insert(0, str(Path.cwd()))  # finds functions of this folder
    try:
        function = resolve_name(path)
        pickle.dumps(function)  # other processes import it
        code = Path(inspect.getfile(inspect.unwrap(function))).read_bytes()
    except (Exception, SystemExit) as error:  # whatever its module does as it is imported
        raise ConfigError(
            f"{path!r} names no function that can be imported: {type(error).__name__}: {error}; "
            "write my_module:my_function, and correct its module"
        ) from error
    return function, [path, hashlib.sha256(code).hexdigest()[:16]]
