"""`lightning-shards show`: makes a contact sheet of samples, or a page about the shards."""

import sys
from argparse import Namespace
from base64 import b64encode
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_shards.dataprep.show import (
    ChosenSample,
    TabledShards,
    contact_sheet,
    make_thumbnail,
    png_of,
    preview,
)
from lightning_shards.dataprep.survey import Survey, survey
from lightning_shards.errors import ConfigError
from lightning_shards.shards.classes import ClassNames
from lightning_shards.shards.files import replace_file
from lightning_shards.shards.storage.remote import remote_storages
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import redact_pattern
from lightning_shards.tools.console import (
    human,
    printable,
    report,
    require_large_enough,
    run_tool,
)
from lightning_shards.tools.shard_options import (
    classes_of,
    settings_of,
    shard_parser,
    shards_of,
    status_of,
)

_EPILOG = """\
The caption of an image is its key and, with --label, the text of a field; of cls also the name of
the class, from the classes.json beside the shards. The page has samples, the counts of fields, and
findings; it is one file, which loads nothing else. Of remote shards only the members that are shown
are read, if their tables lie beside them, as a page needs them; others are streamed up to the last
sample that is shown. Exit status: 0 written, 1 the page has findings of faults, 2 not done, or some
shards could not be read."""
_SHEET: Final = Path("samples.png")
_PNG, _HTML = ".png", ".html"
_MAX_LABEL: Final = 80
_COLUMNS: Final = 8  # of the sheet, at most
_PIXELS: Final = 160  # largest height and width of an image

_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ heading | show }} · samples</title><style>
body { font: 15px system-ui, sans-serif; margin: 1rem; overflow-wrap: anywhere; }
ul { list-style: none; padding: 0; }
.samples { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); }
.wrong { color: #b3261e; }
</style></head><body>
<h1>{{ heading | show }}</h1>
<p>{{ shown | length }} of {{ seen.samples }} samples in {{ seen.shards | length }} shards</p>
<h2>Fields</h2><ul>
{% for suffix, sizes in seen.fields.items() %}
<li>{{ suffix | show }}: {{ sizes.samples }} samples, {{ sizes.total | human }}</li>
{% endfor %}</ul>
<h2>Findings</h2><ul>
{% for finding in seen.findings %}<li class="{{ 'wrong' if finding.is_failure }}">
{{ 'wrong' if finding.is_failure else 'note' }}: {{ finding.rule }}:
{{ (finding.shard or '') | show }} {{ finding.message | show }}</li>
{% else %}<li>Names and headers are sound; lightning-shards verify reads every byte.</li>
{% endfor %}</ul>
<h2>Samples</h2><ul class="samples">
{% for sample in shown %}<li>
{% if sample.image is not none %}
<img src="data:image/png;base64,{{ sample.image | thumbnail }}" alt="cannot be decoded">{% endif %}
<div><strong>{{ sample.label | show }}</strong></div><div>{{ sample.key | show }}</div>
{% for suffix, text in sample.fields.items() %}<div>{{ suffix | show }}: {{ text | show }}</div>
{% endfor %}</li>{% endfor %}</ul></body></html>
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser(
        "show", "Draw samples on one sheet, a PNG (extra `image`), or on a page.", _EPILOG
    )
    add = parser.add_argument
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--output", type=Path, metavar="PNG", help="default: samples.png")
    files.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser")
    add("--image", metavar="FIELD", help="default: the first field with images")
    add("--label", metavar="FIELD", help="a field of text, such as cls or txt")
    add("--samples", type=int, default=64, metavar="N", help="default: 64")
    add("--seed", type=int, help="draw samples at random; default: evenly spaced over all")
    run_tool("show", _show, parser.parse_args(arguments))


class ShownSample(NamedTuple):
    """A sample as a sheet or a page shows it.

    Attributes:
        key: Its key.
        label: The text of the field with the label; empty without one.
        image: The bytes of its image file; None if it has no image.
        fields: A text for each other field, by suffix.
    """

    key: str
    label: str
    image: bytes | None
    fields: dict[str, str]


def _show(options: Namespace) -> int:
    require_large_enough(options, samples=1, seed=0)
    for option, path, suffix in (("output", options.output, _PNG), ("html", options.html, _HTML)):
        if path is not None and path.suffix.lower() != suffix:
            raise ConfigError(f"--{option} must be a file that ends in {suffix}, got {path}")
    urls, status = shards_of(options), 0
    with closing(Storages(remote_storages(settings_of(options)))) as storages:
        tables = TabledShards(options.cache, storages)
        if options.html is None:
            samples, path = _pick(urls, tables, options), options.output or _SHEET
            data = _sheet(samples, options.image)
        else:
            seen = survey(urls, tables.look, processes=options.processes)
            shards = zip(urls, seen.shards, strict=True)
            samples = _pick([url for url, shard in shards if shard.samples], tables, options)
            path, status = options.html, status_of(seen.failures)
            data = _page(seen, samples, options.urls)
        replace_file(path, data)
    labels = [f"{sample.key} {sample.label}".strip() for sample in samples]
    kind = "output" if options.html is None else "html"
    report({kind: str(path), "labels": labels}, as_json=options.json)
    return status


def _pick(urls: Sequence[str], tables: TabledShards, options: Namespace) -> list[ShownSample]:
    if not urls:
        raise ConfigError("no shard holds a sample that can be read; see `lightning-shards verify`")
    classes = classes_of(urls, options.label, options)
    chosen, are_counted = tables.choose(urls, options.samples, options.seed)
    if not are_counted:
        note = "note: no file counts the samples of these shards, so the first ones of"
        print(f"{note} {len(chosen)} shards are shown", file=sys.stderr)
    samples = [
        _shown(sample, classes, options)
        for url, numbers in chosen.items()
        for sample in tables.samples_of(url, numbers)
    ]
    if not samples:
        raise ConfigError("the shards hold no sample; look at the pattern")
    return samples


def _shown(sample: ChosenSample, classes: ClassNames | None, options: Namespace) -> ShownSample:
    field = options.image or _image_field(list(sample.sizes))
    image = sample.read(field) if field in sample.sizes else None
    label = ""
    if options.label in sample.sizes:
        text = sample.read(options.label).decode("utf-8", "replace").strip()
        name = "" if classes is None else classes.name_of(text)
        label = f"{text} {name}".strip()[:_MAX_LABEL]
    fields: dict[str, str] = {}
    if options.html is not None:
        others = [suffix for suffix in sample.sizes if suffix not in (field, options.label)]
        fields = {
            suffix: preview(sample, suffix) or human(sample.sizes[suffix]) for suffix in others
        }
    return ShownSample(sample.key, label, image, fields)


def _image_field(suffixes: Sequence[str]) -> str:
    from lightning_shards.samples.decoders import Decoding, decoding_of

    return next((suffix for suffix in suffixes if decoding_of(suffix) == Decoding("rgb")), "")


def _sheet(samples: Sequence[ShownSample], field: str | None) -> bytes:
    images = [sample.image for sample in samples if sample.image is not None]
    if not images:
        wanted = f"field {field!r}" if field else "field with images"
        raise ConfigError(
            f"none of {len(samples)} samples has a {wanted}; see `lightning-shards info`, or make "
            "a page of fields and texts by --html"
        )
    captions = [(sample.key, sample.label) for sample in samples if sample.image is not None]
    return contact_sheet(images, captions, columns=_COLUMNS, size=_PIXELS)


def _page(seen: Survey, samples: Sequence[ShownSample], patterns: Sequence[str]) -> bytes:
    from jinja2 import Environment

    environment: Any = Environment(autoescape=True)
    environment.filters |= {"human": human, "show": printable, "thumbnail": _thumbnail}
    heading = "::".join(map(redact_pattern, patterns))
    page: str = environment.from_string(_PAGE).render(heading=heading, seen=seen, shown=samples)
    return page.encode("utf-8", "backslashreplace")


def _thumbnail(image: bytes) -> str:
    """A PNG in base64; empty if the image cannot be decoded."""
    thumbnail = make_thumbnail(image, _PIXELS)
    return "" if thumbnail is None else b64encode(png_of(thumbnail)).decode()
