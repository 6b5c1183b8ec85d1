"""`lightning-shards show`: draws samples on a contact sheet."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import numpy as np

from lightning_shards.dataprep.show import (
    Picture,
    TabledShards,
    contact_sheet,
)
from lightning_shards.dataprep.tar_writer import is_image
from lightning_shards.errors import ConfigError
from lightning_shards.plan.order import SampleOrder
from lightning_shards.remote.storage import remote_storages
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import replace_file
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.storage.schemes import Storages
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
    pictures: list[Picture] = []
    with closing(Storages(remote_storages(settings_of(options)))) as storages:
        tables = TabledShards(options.cache, storages)
        counts = load_index(urls, cache=options.cache, storages=storages).counts
        if counts is None:
            counts = np.array([tables.table_of(url).num_samples for url in urls])
        order = SampleOrder(counts, 0, "sequential")
        num = min(options.samples, order.samples)
        starts = [number * order.samples // num for number in range(num)]
        ids = (order.at(0, start, start + 1)[0] for start in starts)
        named = [(urls[int(shard)], int(sample)) for shard, sample in ids]
        for url, of_shard in groupby(named, itemgetter(0)):
            with tables.reader(url) as reader:
                pictures += _pictures(reader, [sample for _, sample in of_shard], options)
    if not pictures:
        wanted = options.image or "with images"
        raise ConfigError(f"none of the samples has a field {wanted}; see `lightning-shards info`")
    replace_file(options.output, contact_sheet(pictures))
    labels = [f"{key} {label}".strip() for _, key, label in pictures]
    report({"output": str(options.output), "labels": labels}, as_json=options.json)
    return 0


def _pictures(reader: ShardReader, numbers: Sequence[int], options: Namespace) -> Iterator[Picture]:
    """The pictures of those of these samples that have an image."""
    for number in numbers:
        suffixes = reader.table.suffixes_of(number)
        field = options.image or next(filter(is_image, suffixes), None)
        label = ""
        if options.label in suffixes:
            label = reader.read(number, options.label).decode("utf-8", "replace").strip()
        if field in suffixes:
            yield reader.read(number, field), reader.table.key(number), label[:_MAX_LABEL]
