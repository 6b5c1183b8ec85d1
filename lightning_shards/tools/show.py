"""`lightning-shards show`: draws samples on a contact sheet."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightning_shards.dataprep.tar_writer import is_image
from lightning_shards.errors import ConfigError
from lightning_shards.plan.order import SampleOrder
from lightning_shards.remote.storage import remote_storages
from lightning_shards.samples.images import decode_rgb, require_backend
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import replace_file
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.tools.console import (
    at_least,
    report,
    run_tool,
    settings_of,
    shard_parser,
    shards_of,
)

_EPILOG = """\
The caption of an image is its key and, with --label, the text of a field. Remote shards need the
member tables that `index --format wids,members --upload` puts beside them, and only the members
that are shown are read. Exit status: 0 written, 2 not done."""

_MAX_LABEL: Final = 80
_COLUMNS: Final = 8  # of the sheet, at most
_PIXELS: Final = 160  # largest height and width of an image
_GAP: Final = 12  # pixels between neighbours, and around the sheet
_FONT_SIZE: Final = 12
_LINE_HEIGHT: Final = 16
_PAPER, _BAD = "white", "#ffb0b0"
_INKS: Final = ("#555555", "#000000")  # of the key, and of the label
_MAX_LETTERS: Final = 22  # of a line

_Picture = tuple[bytes, str, str]
"""An image file, and its caption: key and label."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("show", "Draw samples on one sheet, a PNG (extra `image`).", _EPILOG)
    add = parser.add_argument
    add("--output", type=Path, default=Path("samples.png"), metavar="PNG")
    add("--image", metavar="FIELD", help="default: the first field with images")
    add("--label", metavar="FIELD", help="a field of text, such as cls or txt")
    spaced = "evenly spaced over all; default: 64"
    add("--samples", type=at_least(1), default=64, metavar="N", help=spaced)
    run_tool("show", _show, parser.parse_args(arguments))


def _show(options: Namespace) -> int:
    if options.output.suffix.lower() != ".png":  # as a shell expands `--output */*.tar`
        raise ConfigError(f"--output must be a file that ends in .png, got {options.output}")
    urls = shards_of(options)
    pictures: list[_Picture] = []
    with closing(Storages(remote_storages(settings_of(options)))) as storages:
        tables = TableStore(options.cache, storages=storages, takes_split=True)
        counts = load_index(urls, cache=options.cache, storages=storages).counts
        if counts is None:
            counts = np.array([tables.table_of(url).num_samples for url in urls])
        order = SampleOrder(counts, 0, "sequential")
        num = min(options.samples, order.samples)
        starts = [number * order.samples // num for number in range(num)]
        ids = (order.at(0, start, start + 1)[0] for start in starts)
        named = [(urls[int(shard)], int(sample)) for shard, sample in ids]
        for url, of_shard in groupby(named, itemgetter(0)):
            with ShardReader(url, tables.table_of(url), storages.of(url)) as reader:
                pictures += _pictures(reader, [sample for _, sample in of_shard], options)
    if not pictures:
        wanted = options.image or "with images"
        raise ConfigError(f"none of the samples has a field {wanted}; see `lightning-shards info`")
    replace_file(options.output, _contact_sheet(pictures))
    labels = [f"{key} {label}".strip() for _, key, label in pictures]
    report({"output": str(options.output), "labels": labels}, as_json=options.json)
    return 0


def _pictures(
    reader: ShardReader, numbers: Sequence[int], options: Namespace
) -> Iterator[_Picture]:
    """The pictures of those of these samples that have an image."""
    for number in numbers:
        suffixes = reader.table.suffixes_of(number)
        field = options.image or next(filter(is_image, suffixes), None)
        label = ""
        if options.label in suffixes:
            label = reader.read(number, options.label).decode("utf-8", "replace").strip()
        if field in suffixes:
            yield reader.read(number, field), reader.table.key(number), label[:_MAX_LABEL]


def _contact_sheet(pictures: Sequence[_Picture]) -> bytes:
    """A PNG with the pictures in rows, at least one; what cannot be decoded is a red box.

    Of a caption the ends of its lines are shown, as keys differ there.

    Raises:
        ConfigError: Pillow is not installed.
    """
    require_backend("pillow")
    from PIL import Image, ImageDraw, ImageFont

    columns = min(_COLUMNS, len(pictures))
    cell = _PIXELS + _GAP, _PIXELS + len(_INKS) * _LINE_HEIGHT + _GAP
    size = columns * cell[0] + _GAP, -(-len(pictures) // columns) * cell[1] + _GAP
    sheet = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(_FONT_SIZE)
    for number, (data, *caption) in enumerate(pictures):
        row, column = divmod(number, columns)
        left, top = _GAP + column * cell[0], _GAP + row * cell[1]
        try:
            image = _fitted(data)
        except Exception:  # noqa: BLE001 bytes of any origin make decoders raise anything
            image = Image.new("RGB", (_PIXELS, _PIXELS), _BAD)
        sheet.paste(image, (left, top))
        for line, (text, ink) in enumerate(zip(caption, _INKS, strict=True)):
            last = " ".join(text.split())[-_MAX_LETTERS:]
            place = left, top + _PIXELS + 2 + line * _LINE_HEIGHT
            draw.text(place, last, fill=ink, font=font)
    sheet.save(file := BytesIO(), "PNG")
    return file.getvalue()


def _fitted(data: bytes) -> Any:
    """A `PIL.Image.Image` of the pixels that training gets, in the middle of its place."""
    from PIL import Image, ImageOps

    image = Image.fromarray(decode_rgb(data).transpose(1, 2, 0))
    is_small = max(image.size) < _PIXELS  # enlarged, its pixels stay sharp
    kind = Image.Resampling.NEAREST if is_small else Image.Resampling.BICUBIC
    return ImageOps.pad(image, (_PIXELS, _PIXELS), kind, _PAPER)
