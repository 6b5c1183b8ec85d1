"""`lightning-shards pack`: packs files, tables and tars into shards.

It has the options of the output and the report for `reshard`, too.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from lightning_shards.dataprep.listing import (
    TABLE_SUFFIXES,
    Columns,
    Listing,
    list_folder,
    list_table,
    list_tars,
)
from lightning_shards.dataprep.packing import DEFAULT_MAX_BYTES, Packing, PackOrder
from lightning_shards.dataprep.rewriting import Edit, rewrite
from lightning_shards.errors import ConfigError
from lightning_shards.shards.classes import CLASSES, ClassNames, read_class_file
from lightning_shards.shards.patterns import expand_urls, require_local
from lightning_shards.tools.console import (
    add_run_options,
    at_least,
    report,
    run_tool,
    tool_parser,
)

_EPILOG = """\
  lightning-shards pack photos/ --out data --val-fraction 0.05 --resize 512
  lightning-shards pack rows.csv --files path --values caption=txt --key id --out data
  lightning-shards pack archive.tar --max-samples 10000 --out data

A folder of folders of classes gives each sample its class as field `cls`, numbered in the order of
the names (numbers: of their values); classes.json beside the shards has both. Splits that are
packed one by one need the same numbers: give the later ones --classes data/train/classes.json.
Files whose names differ in the suffix alone are one sample, also in a flat folder (1.jpg, 1.txt).
--resize averages photographs, and refuses what may be a map of labels or depths.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run_tool("pack", _pack, _parser().parse_args(arguments))


def _parser() -> ArgumentParser:
    description = "Write a folder, a table of files or tars as shards, with their index."
    parser = output_parser("pack", description, _EPILOG, order="shuffled")
    add = parser.add_argument
    add("input", nargs="+", help=f"a folder; a table ({', '.join(TABLE_SUFFIXES)}); or tars")
    add("--resize", type=at_least(1), metavar="N", help="shorter side of images at most, in pixels")
    add("--classes", type=Path, metavar="FILE", help="a classes.json with the numbers of classes")
    add("--no-classes", action="store_true", help="the folders in a folder are no classes")
    tables = parser.add_argument_group("tables").add_argument
    pair: dict[str, Any] = {"action": "append", "type": _column_and_field, "default": []}
    files = "a column that names files; COLUMN alone: their own suffix"
    tables("--files", metavar="COLUMN=FIELD", help=files, **pair)
    values = "a column whose values are stored; once for each column"
    tables("--values", metavar="COLUMN=FIELD", help=values, **pair)
    tables("--key", metavar="COLUMN", help="keys; default: the path of the first file")
    tables("--class-column", metavar="COLUMN", help="names of classes, numbered as field cls")
    tables("--split-column", metavar="COLUMN", help="the split of each sample, a folder each")
    return parser


def _column_and_field(text: str) -> tuple[str, str]:
    column, equals, field = text.rpartition("=")
    return (column, field.strip()) if equals else (text, "")


def output_parser(tool: str, description: str, epilog: str, *, order: str) -> ArgumentParser:
    """A parser with the options of the output; `order` is the default order of samples."""
    parser = tool_parser(tool, description, epilog)
    add = parser.add_argument
    out = "folder to write, not in the input: new, or of a run that goes on with this command"
    add("--out", required=True, type=Path, metavar="DIR", help=out)
    limits = parser.add_mutually_exclusive_group().add_argument
    limits("--max-samples", type=int, metavar="N", help="samples of a shard at most")
    size = "bytes of a shard at most; default without --max-samples: 1_000_000_000"
    limits("--max-bytes", type=int, default=DEFAULT_MAX_BYTES, metavar="N", help=size)
    add("--order", default=order, choices=get_args(PackOrder), help="of samples")
    add("--seed", type=at_least(0), default=0, help="of the shuffle and of splits")
    add("--val-fraction", type=float, default=0.0, metavar="X", help="share that goes to DIR/val")
    add_run_options(parser)
    return parser


def _pack(options: Namespace) -> int:
    if options.resize is None:
        return write_and_report(options, _list(options), Edit())
    from lightning_shards.dataprep.reencode import with_smaller_images

    settings = {"resize": options.resize, "pillow": version("pillow")}
    edit = Edit(partial(with_smaller_images, resize=options.resize), settings=settings)
    return write_and_report(options, _list(options), edit)


def _list(options: Namespace) -> Listing:
    first: str = options.input[0]
    is_table, is_folder = Path(first).suffix.lower() in TABLE_SUFFIXES, Path(first).is_dir()
    if len(options.input) > 1 and (is_table or is_folder):
        raise ConfigError(
            f"one folder or one table at a time, got {len(options.input)}; pack them apart"
        )
    columns = {name: getattr(options, name) for name in Columns._fields}
    if any(columns.values()) and not is_table:
        raise ConfigError(f"columns are of a table, and {first} is none; leave their options out")
    if is_table:
        return list_table(first, Columns(**columns), _given_classes(options))
    if is_folder:
        _require_outside(options.out, Path(first))
        has_classes = not options.no_classes
        return list_folder(first, has_classes=has_classes, given=_given_classes(options))
    return list_local_tars(options, options.input)


def _given_classes(options: Namespace) -> ClassNames | None:
    if options.classes is None:
        return None
    classes = read_class_file(options.classes)
    if classes is None:
        raise ConfigError(f"{options.classes} cannot be read; name the {CLASSES} of other shards")
    return classes


def list_local_tars(options: Namespace, urls: Sequence[str]) -> Listing:
    """The samples of these tars."""
    paths = require_local(expand_urls(urls), "this tool")
    return list_tars(paths, options.cache, processes=options.processes)


def _require_outside(output: Path, folder: Path) -> None:
    """Refuse an output in the folder whose files are packed: a next run would pack it, too."""
    if output.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{output} is in {folder.resolve()}, where samples are read, and a next run would take "
            "its shards for samples; name another output folder"
        )


def write_and_report(options: Namespace, listing: Listing, edit: Edit) -> int:
    """Write the samples; print how many were read, and the data sets."""
    packing = Packing(**{field.name: getattr(options, field.name) for field in fields(Packing)})
    data_sets = rewrite(
        listing, packing, options.out, edit, cache=options.cache, processes=options.processes
    )
    counts = {
        "read": len(listing.samples),
        "in_no_sample": listing.ignored,
        "classes": len(listing.classes),
    }
    report(counts | {"data_sets": data_sets}, as_json=options.json)
    return 0
