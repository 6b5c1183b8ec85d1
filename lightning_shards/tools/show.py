"""`lightning-shards show`: makes a contact sheet of samples."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.shards.atomic import replace_file
from lightning_shards.shards.classes import ClassNames
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.storage.fetching import require_local
from lightning_shards.shards.tables import TableStore, build_tables
from lightning_shards.shards.urls import expand_urls
from lightning_shards.tools.console import run_tool, shard_parser
from lightning_shards.tools.shard_options import classes_of, with_class_name

_EPILOG = (
    "The label under an image is its key and, with --label, the text of a field; of cls also the "
    "name of the class, from the classes.json beside the shards."
)
_MAX_LABEL = 80


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("show", "Draw samples on one sheet, a PNG (extra `image`).", _EPILOG)
    parser.add_argument("--output", type=Path, default=Path("samples.png"), metavar="PNG")
    parser.add_argument("--image", metavar="FIELD", help="default: the first field with images")
    parser.add_argument("--label", metavar="FIELD", help="a field of text, such as cls or txt")
    parser.add_argument("--samples", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--columns", type=int, default=8, metavar="N", help="default: 8")
    parser.add_argument("--size", type=int, default=160, metavar="PIXELS", help="default: 160")
    parser.add_argument(
        "--seed", type=int, help="draw samples at random; default: evenly spaced over all"
    )
    run_tool("show", _show, parser.parse_args(arguments))


def _show(options: Namespace) -> int:
    from lightning_shards.dataprep.inspection.contact_sheet import contact_sheet

    for name in ("samples", "columns", "size"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {getattr(options, name)}")
    paths = require_local(expand_urls(options.urls), "show")
    images, labels = _pick(paths, options)
    sheet = contact_sheet(images, labels, columns=options.columns, size=options.size)
    replace_file(options.output, sheet)
    if options.json:
        print(json.dumps({"output": str(options.output), "labels": labels}))
    else:
        print(f"wrote {options.output}: {len(images):,} samples")
    return 0


def _pick(paths: Sequence[str], options: Namespace) -> tuple[list[bytes], list[str]]:
    """Images and labels of the samples to show."""
    store = TableStore(options.cache)
    build_tables(paths, store)
    counts = np.array([store.table_of(path).num_samples for path in paths])
    stops: NDArray[np.int64] = np.cumsum(counts)
    total = int(stops[-1])
    if not total:
        raise ConfigError("the shards hold no sample; look at the pattern")
    classes = classes_of(paths, options.label)
    numbers = _numbers(total, min(int(options.samples), total), options.seed)
    images: list[bytes] = []
    labels: list[str] = []
    by_shard: dict[int, list[int]] = {}
    for number in numbers:
        shard = int(np.searchsorted(stops, number, side="right"))
        by_shard.setdefault(shard, []).append(number - int(stops[shard] - counts[shard]))
    for shard, samples in by_shard.items():
        with ShardReader(paths[shard], store.table_of(paths[shard])) as reader:
            for sample in samples:
                image = options.image or _image_field(reader.table.suffixes_of(sample))
                if image is not None and reader.table.find(sample, image) is not None:
                    images.append(reader.read(sample, image))
                    labels.append(_label(reader, sample, options.label, classes))
    if not images:
        wanted = f"field {options.image!r}" if options.image else "field with images"
        raise ConfigError(
            f"none of {len(numbers)} samples has a {wanted}; see `lightning-shards info`"
        )
    return images, labels


def _numbers(total: int, num: int, seed: int | None) -> list[int]:
    """Numbers of the samples to show, in order: evenly spaced, or drawn without repeats."""
    if seed is None:
        return [number * total // num for number in range(num)]
    drawn = np.random.default_rng(seed)
    chosen: set[int] = set()  # a permutation of all numbers could be too large
    while len(chosen) < num:
        chosen.add(int(drawn.integers(total)))
    return sorted(chosen)


def _image_field(suffixes: Sequence[str]) -> str | None:
    from lightning_shards.samples.fields import decoder_of

    return next((suffix for suffix in suffixes if decoder_of(suffix) == "rgb"), None)


def _label(reader: ShardReader, sample: int, field: str | None, classes: ClassNames | None) -> str:
    key = reader.table.key(sample)
    if field is None or reader.table.find(sample, field) is None:
        return key
    text = reader.read(sample, field).decode("utf-8", "replace").strip()
    return f"{key} {with_class_name(text, classes)[:_MAX_LABEL]}"
