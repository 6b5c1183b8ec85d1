"""What `pack` and `reshard` have in common: the options of the output, and the report."""

import json
import re
import shlex
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from lightning_shards.dataprep.listing import Listing, list_tars, require_apart
from lightning_shards.dataprep.packing import FRACTION_SPLITS, Packing, PackOrder
from lightning_shards.dataprep.rewriting import DataSet, Edit, Output, rewrite
from lightning_shards.errors import count_of
from lightning_shards.shards.classes import CLASS_SUFFIX, CLASSES
from lightning_shards.shards.remote.proxies import require_local
from lightning_shards.shards.urls import expand_urls
from lightning_shards.tools.console import add_run_options, human, printable

_RESUMING: Final = """\
Every shard appears whole, the index last. A run that was killed goes on when the same command is
given again, and gives the same bytes; so does any number of processes. Exit status: 0 written, 2
not done.

"""

_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = ("", "K", "M", "G", "T")
_PACKING = ("order", "seed", "max_samples", "max_bytes", "num_shards", "keep", "val_fraction")


def output_parser(tool: str, description: str, epilog: str, *, order: str) -> ArgumentParser:
    """A parser with the options of the output; `order` is the default order of samples."""
    parser = ArgumentParser(
        prog=f"lightning-shards {tool}",
        description=description,
        epilog=_RESUMING + epilog,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(tool=tool)
    add = parser.add_argument
    out = "folder to write: new or unfinished, not in the input"
    add("--out", required=True, type=Path, metavar="DIR", help=out)
    add("--prefix", default="shard", metavar="NAME", help="of shards: NAME-000000.tar")
    add("--max-samples", type=int, metavar="N", help="samples of a shard at most")
    size = "like 500MB or 1GiB; default without --max-samples: 1GB"
    add("--max-bytes", type=size_bytes, metavar="SIZE", help=size)
    add("--num-shards", type=int, metavar="N", help="in place of both: equal shards")
    add("--order", default=order, choices=get_args(PackOrder), help="of samples")
    add("--seed", type=int, default=0, help="of the shuffle, of splits and shares")
    add("--val-fraction", type=float, default=0.0, metavar="X", help="share that goes to DIR/val")
    add("--keep", type=float, default=1.0, metavar="X", help="share of the samples that is kept")
    add_run_options(parser, "of member tables; see `index`")
    return parser


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
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS.index(match[2].upper()))


def list_local_tars(options: Namespace, urls: Sequence[str]) -> Listing:
    """The samples of these tars, after a check that the output is not among them."""
    paths = require_local(expand_urls(urls), options.tool)
    folders = {
        folder for path in paths for folder in (Path(path).parent, Path(path).resolve().parent)
    }
    require_apart(output_folders(options), folders)
    return list_tars(paths, processes=options.processes)


def write_and_report(
    options: Namespace, listing: Listing, edit: Edit, notes: Sequence[str] = ()
) -> None:
    """Write the samples; print notes, the data sets and what of the input is in no sample."""
    packing = Packing(**{name: getattr(options, name) for name in _PACKING})
    output = Output(
        folder=options.out,
        cache=options.cache,
        prefix=options.prefix,
        processes=options.processes,
    )
    written = rewrite(listing, packing, output, edit)
    fields = Counter(member.field for sample in listing.samples for member in sample.members)
    kept_shards = sum(data_set.kept_shards for data_set in written.values())
    if not options.json:
        print(*notes, sep="\n", end="\n" * bool(notes))
        _print_text(options, listing, written, fields)
        if kept_shards:
            print(f"there already: {count_of(kept_shards, 'shard')}")
        return
    document = {
        "data_sets": {name: data_set._asdict() for name, data_set in written.items()},
        "kept_shards": kept_shards,
        "input": {
            "samples": len(listing.samples),
            "fields": dict(sorted(fields.items())),
            "ignored": listing.ignored,
            "joined": listing.joined,
            "classes": len(listing.classes),
        },
    }
    print(json.dumps(document))


def _print_text(
    options: Namespace, listing: Listing, written: Mapping[str, DataSet], read: Mapping[str, int]
) -> None:
    fields: Counter[str] = Counter()
    for data_set in written.values():
        fields.update(data_set.fields)
        print(
            f"{count_of(data_set.samples, 'sample')} in {count_of(data_set.shards, 'shard')}, "
            f"{human(data_set.size_bytes)}: {data_set.urls}"
        )
    print(_counts_line("read", len(listing.samples), read))
    print(_counts_line("wrote", sum(each.samples for each in written.values()), fields))
    for reason, count in sorted(listing.ignored.items()):
        print(f"in no sample: {count:,} {reason}")
    if listing.joined:
        print(f"joined {listing.joined:,} samples whose members were apart")
    command = ["lightning-shards", "info", *(data_set.urls for data_set in written.values())]
    if options.cache.given is not None:
        command += ["--cache-dir", str(options.cache.given)]
    if listing.classes:
        paths = ", ".join(str(options.out / split / CLASSES) for split in written)
        print(f"{len(listing.classes):,} classes of the field {CLASS_SUFFIX}: {paths}")
        command += ["--classes"] * (CLASS_SUFFIX in fields)
    print(f"next: {shlex.join(command)}")


def _counts_line(verb: str, samples: int, fields: Mapping[str, int]) -> str:
    counts = ", ".join(f"{printable(name)} {count:,}" for name, count in sorted(fields.items()))
    return f"{verb} {count_of(samples, 'sample')}: {counts}"
