"""`lightning-shards show`: makes a contact sheet of samples, or a page about the shards."""

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.inspection.contents import class_counts, contents_of, preview
from lightning_shards.dataprep.inspection.survey import Survey, survey
from lightning_shards.errors import ConfigError
from lightning_shards.shards.atomic import replace_file
from lightning_shards.shards.classes import ClassNames
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.storage.local_copies import require_local
from lightning_shards.shards.tables import TableStore, build_tables
from lightning_shards.shards.urls import expand_urls
from lightning_shards.tools.console import (
    FAILED,
    human,
    require_large_enough,
    run_tool,
    shard_parser,
)
from lightning_shards.tools.shard_options import classes_of, with_class_name

if TYPE_CHECKING:  # both import torch
    from lightning_shards.dataprep.inspection.thumbnails import Thumbnail
    from lightning_shards.tools.show_page import ClassCounts, ShownSample

_EPILOG = """The caption of an image is its key and, with --label, the text of a field; of cls also
the name of the class, from the classes.json beside the shards. The page has samples, fields, sizes,
classes (of the --label, else of cls), shards and findings; it is one file, which loads nothing
else. Exit status: 0 written, 1 the page has findings of faults, 2 not done."""
_SHEET = Path("samples.png")
_MAX_LABEL = 80
_MAX_CLASS_BYTES = 256
"""A field with longer members holds no classes."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser(
        "show", "Draw samples on one sheet, a PNG (extra `image`), or on a page.", _EPILOG
    )
    add = parser.add_argument
    add("--output", type=Path, metavar="PNG", help="default: samples.png, or none with --html")
    add("--html", type=Path, metavar="FILE", help="write a page for a browser; must be a new file")
    add("--image", metavar="FIELD", help="default: the first field with images")
    add("--label", metavar="FIELD", help="a field of text, such as cls or txt")
    add("--samples", type=int, default=64, metavar="N", help="default: 64")
    add("--columns", type=int, default=8, metavar="N", help="of the sheet, at most; default: 8")
    add(
        "--size",
        type=int,
        default=160,
        metavar="PIXELS",
        help="largest height and width of an image; a small one is enlarged by the largest whole "
        "factor that fits; default: 160",
    )
    add("--seed", type=int, help="draw samples at random; default: evenly spaced over all")
    run_tool("show", _show, parser.parse_args(arguments))


def _show(options: Namespace) -> int:
    _check(options)
    paths = require_local(expand_urls(options.urls), "show")
    surveyed = None
    if options.html is not None:
        surveyed = survey(paths, cache=options.cache, processes=options.processes)
        shards = zip(paths, surveyed.shards, strict=True)
        paths = [path for path, shard in shards if shard.samples]
    samples = _pick(paths, options)
    written: dict[str, str | None] = {"output": None}
    if surveyed is None or options.output is not None:
        written["output"] = _write_sheet(samples, options)
    if surveyed is not None:
        written["html"] = _write_page(paths, surveyed, samples, options)
    labels = [f"{sample.key} {sample.label}".strip() for sample in samples]
    if options.json:
        print(json.dumps({**written, "labels": labels}))
    else:
        files = " and ".join(path for path in written.values() if path is not None)
        print(f"wrote {files}: {len(samples):,} samples")
    return FAILED if surveyed is not None and surveyed.failures else 0


def _check(options: Namespace) -> None:
    require_large_enough(options, samples=1, columns=1, size=1)
    if options.html is not None and os.path.lexists(options.html):
        raise ConfigError(f"{options.html} is there already; name another file for --html")


def _write_sheet(samples: Sequence["ShownSample"], options: Namespace) -> str:
    from lightning_shards.dataprep.inspection.contact_sheet import contact_sheet

    with_images = [(sample, sample.image) for sample in samples if sample.image is not None]
    if not with_images:
        wanted = f"field {options.image!r}" if options.image else "field with images"
        raise ConfigError(
            f"none of {len(samples)} samples has a {wanted}; see `lightning-shards info`, or make "
            "a page of fields and texts by --html"
        )
    output = options.output or _SHEET
    images = [image for _, image in with_images]
    captions = [(sample.key, sample.label) for sample, _ in with_images]
    sheet = contact_sheet(images, captions, columns=options.columns, size=options.size)
    replace_file(output, sheet)
    return str(output)


def _write_page(
    paths: Sequence[str], surveyed: Survey, samples: Sequence["ShownSample"], options: Namespace
) -> str:
    from lightning_shards.tools.show_page import make_page

    chosen = "evenly spaced" if options.seed is None else f"drawn with seed {options.seed}"
    page = make_page(
        "::".join(options.urls),
        f"{len(samples):,} of {surveyed.samples:,}, {chosen}",
        _with_thumbnails(samples, options.size),
        surveyed,
        contents_of(paths[0], list(surveyed.fields), options.cache),
        _classes(paths, surveyed, options),
    )
    _check(options)  # another program may have written it meanwhile
    replace_file(options.html, page)
    return str(options.html)


def _with_thumbnails(
    samples: Sequence["ShownSample"], size: int
) -> list[tuple["ShownSample", "Thumbnail | None"]]:
    from lightning_shards.dataprep.inspection.thumbnails import make_thumbnail
    from lightning_shards.samples.decoding.images import require_backend

    if any(sample.image is not None for sample in samples):
        require_backend("pillow")
    return [
        (sample, None if sample.image is None else make_thumbnail(sample.image, size))
        for sample in samples
    ]


def _classes(paths: Sequence[str], surveyed: Survey, options: Namespace) -> "ClassCounts | None":
    """The classes in the field of the label; None if it is missing or too long to name classes."""
    from lightning_shards.tools.show_page import ClassCounts

    field = options.label or "cls"
    sizes = surveyed.fields.get(field)
    if sizes is None or sizes.largest > _MAX_CLASS_BYTES:
        return None
    counts = class_counts(paths, field, cache=options.cache, processes=options.processes)
    classes = classes_of(paths, field)
    named = {with_class_name(label, classes): count for label, count in counts.most_common()}
    return ClassCounts(field, named)


def _pick(paths: Sequence[str], options: Namespace) -> "list[ShownSample]":
    """The samples to show; without a page only those with images."""
    if not paths:
        raise ConfigError("no shard holds a sample that can be read; see `lightning-shards verify`")
    store = TableStore(options.cache)
    build_tables(paths, store)
    counts = np.array([store.table_of(path).num_samples for path in paths], np.int64)
    stops: NDArray[np.int64] = np.cumsum(counts)
    total = int(counts.sum())
    if not total:
        raise ConfigError("the shards hold no sample; look at the pattern")
    classes = classes_of(paths, options.label)
    samples: list[ShownSample] = []
    by_shard: dict[int, list[int]] = {}
    for number in _numbers(total, min(int(options.samples), total), options.seed):
        shard = int(np.searchsorted(stops, number, side="right"))
        by_shard.setdefault(shard, []).append(number - int(stops[shard] - counts[shard]))
    for shard, numbers in by_shard.items():
        with ShardReader(paths[shard], store.table_of(paths[shard])) as reader:
            samples += [_shown(reader, number, classes, options) for number in numbers]
    return samples


def _numbers(total: int, num: int, seed: int | None) -> list[int]:
    """Numbers of the samples to show, in order: evenly spaced, or drawn without repeats."""
    if seed is None:
        return [number * total // num for number in range(num)]
    drawn = np.random.default_rng(seed)
    chosen: set[int] = set()  # a permutation of all numbers could be too large
    while len(chosen) < num:
        chosen.add(int(drawn.integers(total)))
    return sorted(chosen)


def _shown(
    reader: ShardReader, sample: int, classes: ClassNames | None, options: Namespace
) -> "ShownSample":
    from lightning_shards.tools.show_page import ShownSample

    table = reader.table
    suffixes = table.suffixes_of(sample)
    field = options.image or _image_field(suffixes)
    has_image = field is not None and table.find(sample, field) is not None
    image = reader.read(sample, field) if field is not None and has_image else None
    texts: dict[str, str] = {}
    if options.html is not None:
        for suffix in suffixes:
            extent = table.find(sample, suffix)
            if suffix not in {field, options.label} and extent is not None:
                text = preview(reader, sample, suffix)
                texts[suffix] = human(extent[1]) if text is None else " ".join(text.split())
    label = with_class_name(_label(reader, sample, options.label), classes)[:_MAX_LABEL]
    return ShownSample(table.key(sample), label, image, texts)


def _image_field(suffixes: Sequence[str]) -> str | None:
    from lightning_shards.samples.decoding.decoders import Decoding, decoding_of

    return next((suffix for suffix in suffixes if decoding_of(suffix) == Decoding("rgb")), None)


def _label(reader: ShardReader, sample: int, field: str | None) -> str:
    if field is None or reader.table.find(sample, field) is None:
        return ""
    return reader.read(sample, field).decode("utf-8", "replace").strip()
