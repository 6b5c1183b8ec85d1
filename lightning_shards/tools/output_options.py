"""Output options of `pack` and `reshard`, their loading of functions, and their report."""

import hashlib
import inspect
import json
import pickle
import re
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, get_args

from lightning_shards.dataprep.writing.listing import Listing
from lightning_shards.dataprep.writing.packing import FRACTION_SPLITS, DuplicateKeys, Packing
from lightning_shards.dataprep.writing.rewriting import DataSet, Output, Rewritten
from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.classes import CLASS_SUFFIX, CLASSES, ClassNames
from lightning_shards.shards.tar.blocks import BLOCK
from lightning_shards.tools.console import add_run_options, human, printable

RESUMING: Final = """\
Every shard appears whole, the index last. A run that was killed goes on when the same command is
given again, and gives the same bytes; so does any number of processes. Exit status: 0 written, 2
not done."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_LEAST_PAYLOAD: Final = 1 / 3
"""The least share of their bytes in the tar that contents should have; photos have over 0.9."""

_SMALLEST_SHARE: Final = 1e-6
_MAX_NAMED: Final = 20

_POWERS = ("", "K", "M", "G", "T")


def add_output_options(parser: ArgumentParser, *, order: str) -> None:
    """Add the options of the output; `order` is the default order of samples."""
    add = parser.add_argument
    add(
        "--out",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder to write: new or unfinished, not in the input",
    )
    add("--prefix", default="shard", metavar="NAME", help="of shards: NAME-000000.tar")
    add("--max-samples", type=int, metavar="N", help="samples of a shard at most")
    add(
        "--max-bytes",
        type=size_bytes,
        metavar="SIZE",
        help="like 500MB or 1GiB; default without --max-samples: 1GB",
    )
    add("--num-shards", type=int, metavar="N", help="in place of both: equal shards")
    add("--order", default=order, choices=("source", "shuffled", "sorted"), help="of samples")
    add("--seed", type=int, default=0, help="of the shuffle, of splits and shares")
    add("--val-fraction", type=float, default=0.0, metavar="X", help="share that goes to DIR/val")
    add("--keep", type=float, default=1.0, metavar="X", help="share of the samples that is kept")
    add(
        "--duplicate-keys",
        default="refuse",
        choices=get_args(DuplicateKeys),
        help="what becomes of a key that others have too. prefix: put the name of its file before "
        "it, number: a number behind it",
    )
    add_run_options(parser, "of member tables; see `index`")


def packing_of(options: Namespace) -> Packing:
    """The packing that the options ask for."""
    names = ("order", "seed", "max_samples", "max_bytes", "num_shards", "keep", "val_fraction")
    return Packing(**{name: getattr(options, name) for name in names})


def output_of(options: Namespace) -> Output:
    """The output that the options ask for."""
    return Output(
        folder=options.out,
        cache=options.cache,
        prefix=options.prefix,
        processes=options.processes,
    )


def output_folders(options: Namespace) -> list[Path]:
    """The folders to which the options write shards, and the one above the folders of splits."""
    splits = FRACTION_SPLITS if options.val_fraction else ()
    return [options.out, *(options.out / split for split in splits)]


def size_bytes(text: str) -> int:
    """A number of bytes, in units of 1000 or, with an i, of 1024.

    >>> size_bytes("1.5GB"), size_bytes("1MiB"), size_bytes("512")
    (1500000000, 1048576, 512)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)  # argparse reports it
    number = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS.index(match[2].upper())
    if number == float("inf"):
        raise ValueError(text)
    return int(number)


def load_function(path: str) -> tuple[Callable[[dict[str, Any]], Any], dict[str, str]]:
    """A function by its import path, and its identity: the path and the digest of its file.

    Raises:
        ConfigError: There is no such function, another process could not import it, or its module
            raises an error or exits.
    """
    sys.path.insert(0, str(Path.cwd()))  # finds functions of this folder
    try:
        function = resolve_name(path)
        pickle.dumps(function)
    except (ImportError, AttributeError, ValueError, pickle.PicklingError, TypeError) as error:
        raise ConfigError(
            f"{path!r} names no function: {error}; write my_module:my_function"
        ) from error
    except (Exception, SystemExit) as error:  # whatever its module does as it is imported
        raise ConfigError(
            f"{path!r} cannot be imported: {type(error).__name__}: {error}; correct its module"
        ) from error
    if not callable(function):
        raise ConfigError(f"{path!r} is no function but {type(function).__name__}")
    try:
        code = Path(inspect.getfile(inspect.unwrap(function))).read_bytes()
    except (TypeError, OSError):
        code = b""  # built in
    return function, {"function": path, "code": hashlib.sha256(code).hexdigest()[:16]}


def require_known_fields(option: str, names: Iterable[str], fields: Sequence[str]) -> None:
    """Refuse a field that no sample has, because it would change nothing without a word.

    Raises:
        ConfigError: The message names fields that there are.
    """
    for name in names:
        if name not in fields:
            known = ", ".join(sorted(fields)[:_MAX_NAMED])
            more = len(fields) - _MAX_NAMED
            raise ConfigError(
                f"{option} names the field {name!r}, which no sample has; name one of {known}"
                + f" and {more:,} more" * (more > 0)
            )


def print_report(options: Namespace, listing: Listing, written: Rewritten) -> None:
    """Print the data sets that were written, and counts of input that is in no sample."""
    if options.json:
        data_sets = {name: data_set._asdict() for name, data_set in written.data_sets.items()}
        document = {
            "data_sets": data_sets,
            "kept_shards": written.kept_shards,
            "input": {
                "samples": len(listing.catalog),
                "fields": listing.catalog.field_counts(),
                "ignored": +listing.ignored,
                "joined": listing.joined,
                "classes": len(listing.classes),
            },
        }
        print(json.dumps(document))
    else:
        _print_text(options, listing, written)


def _print_text(options: Namespace, listing: Listing, written: Rewritten) -> None:
    for data_set in written.data_sets.values():
        size = human(data_set.size_bytes)
        print(
            f"{count_of(data_set.samples, 'sample')} in {count_of(data_set.shards, 'shard')}, "
            f"{size}: {data_set.urls}"
        )
    fields: Counter[str] = Counter()
    for data_set in written.data_sets.values():
        fields.update(data_set.fields)
    print(_counts_line("read", len(listing.catalog), listing.catalog.field_counts()))
    num_written = sum(data_set.samples for data_set in written.data_sets.values())
    print(_counts_line("wrote", num_written, fields))
    for reason, count in sorted((+listing.ignored).items()):
        print(f"in no sample: {count:,} {reason}")
    if listing.joined:
        print(f"joined {listing.joined:,} samples whose members were apart")
    if listing.classes:
        paths = ", ".join(str(options.out / split / CLASSES) for split in written.data_sets)
        print(f"{len(listing.classes):,} classes of the field {CLASS_SUFFIX}: {paths}")
        _print_renumbered(listing.classes)
    if written.kept_shards:
        print(f"there already: {count_of(written.kept_shards, 'shard')}")
    smallest = min(written.data_sets.values(), key=lambda data_set: data_set.payload_share)
    if smallest.payload_share < _LEAST_PAYLOAD:
        print(_overhead_note(smallest))
    has_classes = CLASS_SUFFIX in fields and bool(listing.classes)
    print(f"next: {_next_command(options, written, has_classes=has_classes)}")


def _print_renumbered(classes: Mapping[str, int]) -> None:
    """Print a note if names of classes are numbers, and not those of the classes."""
    name = ClassNames(classes, "").renumbered
    if name is not None:
        print(
            f"note: the class {printable(name)} has the number {classes[name]}: as the names are "
            f"not 0, 1, 2 and so on, {CLASS_SUFFIX} holds other numbers than they are"
        )


def _counts_line(verb: str, samples: int, fields: Mapping[str, int]) -> str:
    counts = ", ".join(f"{printable(name)} {count:,}" for name, count in sorted(fields.items()))
    return f"{verb} {count_of(samples, 'sample')}: {counts}"


def _overhead_note(data_set: DataSet) -> str:
    times = 1 / max(data_set.payload_share, _SMALLEST_SHARE)
    return (
        f"note: {data_set.urls}: members take {times:,.1f} times the bytes of their contents "
        f"({data_set.members_per_sample:,.1f} members a sample, each with a header of {BLOCK} "
        f"bytes and padded to a multiple of {BLOCK}); fewer and larger members take less and are "
        "read faster: put the arrays of a sample into one .npy or .safetensors, and its short "
        "values into one .json"
    )


def _next_command(options: Namespace, written: Rewritten, *, has_classes: bool) -> str:
    """The command that shows what was written, as a shell takes it."""
    command = ["lightning-shards", "info", *(each.urls for each in written.data_sets.values())]
    if options.cache.given is not None:
        command += ["--cache-dir", str(options.cache.given)]
    return shlex.join(command + ["--classes"] * has_classes)
