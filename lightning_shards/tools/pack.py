"""`lightning-shards pack`: packs files, tables and tars into shards."""

import os
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_shards.dataprep.writing.apart import require_apart
from lightning_shards.dataprep.writing.class_files import given_classes
from lightning_shards.dataprep.writing.listing import Listing, list_folder, list_tars
from lightning_shards.dataprep.writing.plain_copies import plain_copies
from lightning_shards.dataprep.writing.rewriting import Edit, rewrite
from lightning_shards.dataprep.writing.rows import TABLE_SUFFIXES, Columns, list_table
from lightning_shards.errors import ConfigError
from lightning_shards.shards.classes import ClassNames
from lightning_shards.shards.storage.local_copies import require_local
from lightning_shards.shards.urls import expand_urls
from lightning_shards.tools.console import run_tool
from lightning_shards.tools.output_options import (
    RESUMING,
    add_output_options,
    output_folders,
    output_of,
    packing_of,
    print_report,
    require_known_fields,
)

if TYPE_CHECKING:
    from lightning_shards.dataprep.writing.reencode import Reencode

_EPILOG = f"""\
{RESUMING}

  lightning-shards pack photos/ --out data --val-fraction 0.05 --resize 512 --quality 90
  lightning-shards pack rows.csv --files path --values caption=txt --key id --out data
  lightning-shards pack archive.tar --max-samples 10000 --out data

A folder of folders of classes gives each sample its class as field `cls`, numbered in the order of
the names (whole numbers: of their values); classes.json beside the shards has both. Splits that are
packed one by one need the same numbers: give the later ones --classes data/train/classes.json.
Files whose names differ in the suffix alone are one sample. Tars keep the classes.json beside them,
and may be compressed (see `reshard --help`).

--resize averages photographs: JPEG, and PNG and WebP whose field has no dot. Those with one, such
as mask.png, are maps of labels or depths: they get the same size by their nearest pixels, with the
same mode and values, and the images beside them are not turned by EXIF. --resample says otherwise.
"""

_FOR_TABLES = ("files", "values", "key", "class_column", "split_column", "root")
_FOR_FOLDERS = ("no_classes", "suffix_from")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run_tool("pack", _pack, _parser().parse_args(arguments))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lightning-shards pack",
        description="Write a folder, a table of files or tars as shards, with their index.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("input", nargs="+", help=f"a folder; a table ({', '.join(TABLE_SUFFIXES)}); or tars")
    add_output_options(parser, order="shuffled")
    add("--resize", type=int, metavar="N", help="shorter side of images at most, in pixels")
    add("--quality", type=int, metavar="N", help="of JPEG and WebP that are written anew, 1 to 100")
    add(
        "--resample",
        action="append",
        default=[],
        metavar="FIELD=HOW",
        help="lanczos (a photograph), nearest (a map) or keep (its size); once for each field",
    )
    add("--classes", type=Path, metavar="FILE", help="a classes.json with the numbers of classes")
    folders = parser.add_argument_group("folders").add_argument
    folders("--no-classes", action="store_true", help="folders are no classes")
    folders("--suffix-from", choices=("last", "first"), help="dot of a name; default: last")
    tables = parser.add_argument_group("tables").add_argument
    pair: dict[str, Any] = {"action": "append", "default": [], "metavar": "COLUMN=FIELD"}
    tables(
        "--files",
        **pair,
        help="a column that names files; COLUMN alone: their own suffix; once for each column",
    )
    tables("--values", **pair, help="a column whose values are stored; once for each column")
    tables("--key", metavar="COLUMN", help="keys; default: the path of the first file")
    tables("--class-column", metavar="COLUMN", help="names of classes, numbered as field cls")
    tables("--split-column", metavar="COLUMN", help="the split of each sample, a folder each")
    tables("--root", metavar="DIR", help="folder of the files; default: that of the table")
    return parser


def _pack(options: Namespace) -> int:
    packing, output = packing_of(options), output_of(options)
    reencode = _reencode(options)
    edit = Edit() if reencode is None else Edit(transform=reencode, settings=reencode.settings)
    with ExitStack() as stack:
        listing = _list(options, stack)
        require_known_fields("--resample", _resample(options), listing.catalog.fields)
        written = rewrite(
            listing.catalog,
            packing,
            output,
            edit,
            duplicate_keys=options.duplicate_keys,
            classes=listing.classes,
        )
    if reencode is not None and options.resize is not None and not options.json:
        _print_ways(reencode, listing.catalog.fields)
    print_report(options, listing, written)
    return 0


def _reencode(options: Namespace) -> "Reencode | None":
    if options.resize is None and options.quality is None:
        if options.resample:
            raise ConfigError("--resample says how images are resized; give --resize with it")
        return None
    from lightning_shards.dataprep.writing.reencode import Reencode

    return Reencode(resize=options.resize, quality=options.quality, resample=_resample(options))


def _print_ways(reencode: "Reencode", names: Sequence[str]) -> None:
    """Print which fields were taken for photographs, and which for maps."""
    for way, what in (("lanczos", "photographs"), ("nearest", "maps of values")):
        fields = [name for name in sorted(names) if reencode.way_of(name) == way]
        if fields:
            print(f"resized as {what}: {', '.join(fields)}")


def _resample(options: Namespace) -> dict[str, Any]:
    """How fields are resized, as `Reencode` checks it."""
    return dict(text.partition("=")[::2] for text in options.resample)


def _list(options: Namespace, stack: ExitStack) -> Listing:
    """The samples; the stack holds what they are read from until they are written."""
    first: str = options.input[0]
    if os.path.isdir(first):  # noqa: PTH112 - a leading ./ stays
        _refuse(options, _FOR_TABLES, "a table")
        return list_folder(
            _only(options.input),
            suffix_from=options.suffix_from or "last",
            has_classes=not options.no_classes,
            given=_given_classes(options, has_classes=not options.no_classes),
            outputs=output_folders(options),
        )
    _refuse(options, _FOR_FOLDERS, "a folder")
    if Path(first).suffix.lower() in TABLE_SUFFIXES:
        given = _given_classes(options, has_classes=options.class_column is not None)
        return list_table(_only(options.input), _columns(options, first), given)
    _refuse(options, _FOR_TABLES, "a table")
    _refuse(options, ("classes",), "a folder or a table")
    paths = require_local(expand_urls(options.input), "pack")
    require_apart(paths, output_folders(options))
    copies = stack.enter_context(plain_copies(paths, options.out, processes=options.processes))
    return list_tars(paths, cache=options.cache, copies=copies, processes=options.processes)


def _given_classes(options: Namespace, *, has_classes: bool) -> ClassNames | None:
    if options.classes is None:
        return None
    if not has_classes:
        raise ConfigError(
            "--classes gives numbers to classes, and there are none; name their --class-column, "
            "or leave out --no-classes"
        )
    return given_classes(options.classes)


def _columns(options: Namespace, table: str) -> Columns:
    return Columns(
        files=_pairs(options.files, may_be_single=True),
        values=_pairs(options.values, may_be_single=False),
        key=options.key,
        class_name=options.class_column,
        split=options.split_column,
        root=options.root if options.root is not None else str(Path(table).parent),
    )


def _pairs(texts: Sequence[str], *, may_be_single: bool) -> dict[str, str]:
    """Fields by column."""
    pairs: dict[str, str] = {}
    for text in texts:
        column, equals, field = text.rpartition("=") if "=" in text else (text, "", "")
        field = field.strip()
        if not column or (equals and not field) or not (equals or may_be_single):
            raise ConfigError(f"{text!r} must be COLUMN=FIELD, like caption=txt")
        if column in pairs:
            raise ConfigError(
                f"the column {column!r} is given twice, as {pairs[column]!r} and {field!r}; give "
                "each column once"
            )
        pairs[column] = field
    return pairs


def _refuse(options: Namespace, names: Sequence[str], kind: str) -> None:
    for name in names:
        if getattr(options, name):
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is for {kind}, and {options.input[0]} is none")


def _only(inputs: Sequence[str]) -> str:
    if len(inputs) > 1:
        raise ConfigError(f"one folder or one table at a time, got {len(inputs)}; pack them apart")
    return inputs[0]
