"""`lightning-shards show`: makes a contact sheet of samples, or a page about the shards."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_shards.dataprep.inspection.chosen_samples import (
    ChosenSample,
    ShardsToShow,
    choose_first_samples,
    choose_samples,
)
from lightning_shards.dataprep.inspection.contents import class_counts, contents_of, preview
from lightning_shards.dataprep.inspection.survey import Survey, survey
from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.classes import ClassNames
from lightning_shards.shards.files import open_regular, replace_file
from lightning_shards.shards.storage.schemes import Storages, remote_storages
from lightning_shards.shards.urls import redact_pattern
from lightning_shards.tools.console import (
    human,
    require_large_enough,
    run_tool,
    shard_parser,
    status_of,
)
from lightning_shards.tools.shard_options import (
    add_shard_options,
    classes_of,
    settings_of,
    shards_of,
    with_class_name,
)

if TYPE_CHECKING:  # both import torch
    from lightning_shards.dataprep.inspection.thumbnails import Thumbnail
    from lightning_shards.tools.show_page import ClassCounts, ShownSample

_EPILOG = """The caption of an image is its key and, with --label, the text of a field; of cls also
the name of the class, from the classes.json beside the shards. The page has samples, fields, sizes,
classes (of the --label, else of cls), shards and findings; it is one file, which loads nothing
else. Of remote shards only the members that are shown are read, if their tables lie beside them;
others are streamed up to the last sample that is shown. For a page they are fetched whole. Exit
status: 0 written, 1 the page has findings of faults, 2 not done, or some shards could not be
read."""
_SHEET = Path("samples.png")
_PNG = b"\x89PNG\r\n\x1a\n"
_MAX_LABEL = 80
_NOT_COUNTED = "note: no file counts the samples of these shards, so the first ones of {} are shown"
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
    add_shard_options(parser)
    run_tool("show", _show, parser.parse_args(arguments))


def _show(options: Namespace) -> int:
    _check(options)
    paths = shards_of(options)
    surveyed = None
    if options.html is not None:
        surveyed = survey(
            paths,
            cache=options.cache,
            settings=settings_of(options),
            processes=options.processes,
        )
        shards = zip(paths, surveyed.shards, strict=True)
        paths = [path for path, shard in shards if shard.samples]
    samples = _pick(paths, surveyed, options)
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
    return 0 if surveyed is None else status_of(surveyed.failures)


def _check(options: Namespace) -> None:
    require_large_enough(options, samples=1, columns=1, size=1, seed=0)
    if options.html is not None and os.path.lexists(options.html):
        raise ConfigError(f"{options.html} is there already; name another file for --html")
    output = options.output or _SHEET
    if (options.html is None or options.output is not None) and output.exists():
        with os.fdopen(open_regular(output), "rb") as file:
            begin = file.read(len(_PNG))
        if begin not in (b"", _PNG):
            raise ConfigError(
                f"{output} is there already, and is no PNG that a sheet may replace; name another "
                "file for --output"
            )


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
        "::".join(map(redact_pattern, options.urls)),
        f"{len(samples):,} of {surveyed.samples:,}, {chosen}",
        _with_thumbnails(samples, options.size),
        surveyed,
        contents_of(paths[0], list(surveyed.fields), options.cache, settings_of(options)),
        _classes(paths, surveyed, options),
    )
    _check(options)  # another program may have written it meanwhile
    replace_file(options.html, page.encode("utf-8", "backslashreplace"))
    return str(options.html)


def _with_thumbnails(
    samples: Sequence["ShownSample"], size: int
) -> list[tuple["ShownSample", "Thumbnail | None"]]:
    from lightning_shards.dataprep.inspection.thumbnails import make_thumbnail
    from lightning_shards.samples.images import require_backend

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
    counts = class_counts(
        paths,
        field,
        cache=options.cache,
        settings=settings_of(options),
        processes=options.processes,
    )
    classes = classes_of(paths, field, options.storage_options)
    named = {with_class_name(label, classes): count for label, count in counts.most_common()}
    return ClassCounts(field, named)


def _pick(urls: Sequence[str], surveyed: Survey | None, options: Namespace) -> "list[ShownSample]":
    """The samples to show; without a page only those with images."""
    if not urls:
        raise ConfigError("no shard holds a sample that can be read; see `lightning-shards verify`")
    settings = settings_of(options)
    classes = classes_of(urls, options.label, options.storage_options)
    with closing(Storages(remote_storages(settings))) as storages:
        shards = ShardsToShow(options.cache, settings, storages)
        if surveyed is None:
            counts = shards.counts(urls)
        else:
            counts = [shard.samples for shard in surveyed.shards if shard.samples]
        if counts is None:
            chosen = choose_first_samples(len(urls), options.samples, options.seed)
            print(_NOT_COUNTED.format(count_of(len(chosen), "shard")), file=sys.stderr)
        else:
            chosen = choose_samples(counts, options.samples, options.seed)
        samples = [
            _shown(sample, classes, options)
            for shard, numbers in chosen.items()
            for sample in shards.samples(urls[shard], numbers)
        ]
    if not samples:
        raise ConfigError("the shards hold no sample; look at the pattern")
    return samples


def _shown(sample: ChosenSample, classes: ClassNames | None, options: Namespace) -> "ShownSample":
    from lightning_shards.tools.show_page import ShownSample

    field = options.image or _image_field(list(sample.sizes))
    image = sample.read(field) if field is not None and field in sample.sizes else None
    texts: dict[str, str] = {}
    if options.html is not None:
        for suffix, size in sample.sizes.items():
            if suffix not in {field, options.label}:
                text = preview(sample, suffix)
                texts[suffix] = human(size) if text is None else " ".join(text.split())
    label = with_class_name(_label(sample, options.label), classes)[:_MAX_LABEL]
    return ShownSample(sample.key, label, image, texts)


def _image_field(suffixes: Sequence[str]) -> str | None:
    from lightning_shards.samples.decoders import Decoding, decoding_of

    return next((suffix for suffix in suffixes if decoding_of(suffix) == Decoding("rgb")), None)


def _label(sample: ChosenSample, field: str | None) -> str:
    if field is None or field not in sample.sizes:
        return ""
    return sample.read(field).decode("utf-8", "replace").strip()
