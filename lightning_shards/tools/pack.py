"""`lightning-shards pack`: packs files, tables and tars into shards."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_shards.dataprep.listing import (
    TABLE_SUFFIXES,
    Columns,
    Listing,
    given_classes,
    list_folder,
    list_table,
    require_apart,
)
from lightning_shards.dataprep.rewriting import Edit
from lightning_shards.errors import ConfigError
from lightning_shards.tools.console import run_tool
from lightning_shards.tools.output_options import (
    list_local_tars,
    output_folders,
    output_parser,
    write_and_report,
)

if TYPE_CHECKING:
    from lightning_shards.dataprep.reencode import Reencode

_EPILOG = """\
  lightning-shards pack photos/ --out data --val-fraction 0.05 --resize 512 --quality 90
  lightning-shards pack rows.csv --files path --values caption=txt --key id --out data
  lightning-shards pack archive.tar --max-samples 10000 --out data

A folder of folders of classes gives each sample its class as field `cls`, numbered in the order of
the names (numbers: of their values); classes.json beside the shards has both. Splits that are
packed one by one need the same numbers: give the later ones --classes data/train/classes.json.
Files whose names differ in the suffix alone are one sample. Tars keep the classes.json beside them.

--resize averages photographs: JPEG, and PNG and WebP whose field has no dot. Those with one, such
as mask.png, are maps of labels or depths: they get the same size by their nearest pixels, with the
same mode and values, and the images beside them are not turned by EXIF.
"""

_FOR_TABLES = ("files", "values", "key", "class_column", "split_column", "root")
_FOR_FOLDERS = ("no_classes",)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run_tool("pack", _pack, _parser().parse_args(arguments))


def _parser() -> ArgumentParser:
    description = "Write a folder, a table of files or tars as shards, with their index."
    parser = output_parser("pack", description, _EPILOG, order="shuffled")
    add = parser.add_argument
    add("input", nargs="+", help=f"a folder; a table ({', '.join(TABLE_SUFFIXES)}); or tars")
    add("--resize", type=int, metavar="N", help="shorter side of images at most, in pixels")
    add("--quality", type=int, metavar="N", help="of JPEG and WebP that are written anew, 1 to 100")
    add("--classes", type=Path, metavar="FILE", help="a classes.json with the numbers of classes")
    folders = parser.add_argument_group("folders").add_argument
    folders("--no-classes", action="store_true", help="folders are no classes")
    tables = parser.add_argument_group("tables").add_argument
    pair: dict[str, Any] = {"action": "append", "default": [], "metavar": "COLUMN=FIELD"}
    tables("--files", **pair, help="a column that names files; COLUMN alone: their own suffix")
    tables("--values", **pair, help="a column whose values are stored; once for each column")
    tables("--key", metavar="COLUMN", help="keys; default: the path of the first file")
    tables("--class-column", metavar="COLUMN", help="names of classes, numbered as field cls")
    tables("--split-column", metavar="COLUMN", help="the split of each sample, a folder each")
    tables("--root", metavar="DIR", help="folder of the files; default: that of the table")
    return parser


def _pack(options: Namespace) -> int:
    reencode = _reencode(options)
    listing = _list(options)
    if reencode is None:
        write_and_report(options, listing, Edit())
        return 0
    edit = Edit(transform=reencode, settings=reencode.settings)
    write_and_report(options, listing, edit, _how_resized(listing) if options.resize else ())
    return 0


def _how_resized(listing: Listing) -> list[str]:
    """What is said of the fields of images that are resized."""
    from lightning_shards.dataprep.reencode import format_of, is_map

    fields = {member.field for sample in listing.samples for member in sample.members}
    images = sorted(filter(format_of, fields))
    maps = list(filter(is_map, images))
    photographs = [name for name in images if name not in maps]
    return [
        f"resized as {what}: {', '.join(names)}"
        for what, names in (("photographs", photographs), ("maps of values", maps))
        if names
    ]


def _reencode(options: Namespace) -> "Reencode | None":
    if options.resize is None and options.quality is None:
        return None
    from lightning_shards.dataprep.reencode import Reencode

    return Reencode(resize=options.resize, quality=options.quality)


def _list(options: Namespace) -> Listing:
    first: str = options.input[0]
    is_table = Path(first).suffix.lower() in TABLE_SUFFIXES
    if len(options.input) > 1 and (is_table or Path(first).is_dir()):
        raise ConfigError(
            f"one folder or one table at a time, got {len(options.input)}; pack them apart"
        )
    if Path(first).is_dir():
        _refuse(options, _FOR_TABLES, "a table")
        require_apart(output_folders(options), [Path(first)], below=True)
        has_classes = not options.no_classes
        return list_folder(
            first,
            has_classes=has_classes,
            given=given_classes(options.classes, has_classes=has_classes),
        )
    _refuse(options, _FOR_FOLDERS, "a folder")
    if is_table:
        given = given_classes(options.classes, has_classes=options.class_column is not None)
        return list_table(first, _columns(options, first), given)
    _refuse(options, (*_FOR_TABLES, "classes"), "a folder or a table")
    return list_local_tars(options, options.input)


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
        if not column or column in pairs or bool(field) != bool(equals or not may_be_single):
            raise ConfigError(
                f"{text!r} must be COLUMN=FIELD, like caption=txt, and each column given once"
            )
        pairs[column] = field.strip()
    return pairs


def _refuse(options: Namespace, names: Sequence[str], kind: str) -> None:
    for name in names:
        if getattr(options, name):
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is for {kind}, and {options.input[0]} is none")
