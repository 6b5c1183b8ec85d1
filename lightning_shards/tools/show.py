"""`lightning-shards show`: makes a contact sheet of samples, or a page about the shards."""

import json
import os
import sys
from argparse import Namespace
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lightning_shards import __version__
from lightning_shards.dataprep.show import (
    ChosenSample,
    TabledShards,
    class_counts,
    contact_sheet,
    make_thumbnail,
    png_of,
    preview,
)
from lightning_shards.dataprep.survey import Survey, survey
from lightning_shards.errors import ConfigError
from lightning_shards.shards.classes import ClassNames
from lightning_shards.shards.files import open_regular, replace_file
from lightning_shards.shards.storage.remote import remote_storages
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import redact_pattern
from lightning_shards.tools.console import (
    human,
    printable,
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

_EPILOG = """The caption of an image is its key and, with --label, the text of a field; of cls also
the name of the class, from the classes.json beside the shards. The page has samples, fields, sizes,
classes (of the --label, else of cls), shards and findings; it is one file, which loads nothing
else. Of remote shards only the members that are shown are read, if their tables lie beside them, as
a page needs them; others are streamed up to the last sample that is shown. Exit status: 0 written,
1 the page has findings of faults, 2 not done, or some shards could not be read."""
_SHEET: Final = Path("samples.png")
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_MAX_LABEL: Final = 80
_MAX_CLASS_BYTES: Final = 256
"""A field with longer members holds no classes."""

_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ heading | show }} · samples</title><style>
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: auto; padding: 1rem;
  overflow-wrap: anywhere; }
ul { list-style: none; padding: 0; }
.samples { display: grid; gap: .75rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, {{ tile }}px), 1fr)); }
img { max-width: 100%; height: auto; }
.wrong { color: #b3261e; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: .2rem .7rem; border-bottom: 1px solid #8884; }
</style></head><body>
<h1>{{ heading | show }}</h1>
<p>{{ samples }} samples in {{ shards | length }} shards, {{ size }}</p>
<h2>Findings</h2><ul>
{% for finding in findings %}<li class="{{ 'wrong' if finding.is_failure else 'note' }}">
{{ 'wrong' if finding.is_failure else 'note' }}: {{ finding.rule }}:
{{ (finding.shard or '') | show }} {{ finding.message | show }}</li>
{% else %}<li>Names and headers are sound; lightning-shards verify reads every byte.</li>
{% endfor %}</ul>
<h2>Samples</h2><p>{{ choice }}</p><ul class="samples">
{% for sample in shown %}<li>
{% if sample.png %}<img src="data:image/png;base64,{{ sample.png }}" alt="">
{% elif sample.image is not none %}<p class="wrong">cannot be decoded</p>{% endif %}
<div><strong>{{ sample.label | show }}</strong></div><div>{{ sample.key | show }}</div>
{% for suffix, text in sample.fields.items() %}<div>{{ suffix | show }}: {{ text | show }}</div>
{% endfor %}</li>{% endfor %}</ul>
<h2>Fields</h2><table><tr><th>field<th>samples<th>total<th>least<th>most</tr>
{% for suffix, sizes in fields.items() %}<tr><td>{{ suffix | show }}<td>{{ sizes.samples }}
<td>{{ sizes.total | human }}<td>{{ sizes.least | human }}<td>{{ sizes.most | human }}</tr>
{% endfor %}</table>
{% if classes %}<h2>Classes</h2><p>{{ classes | length }} values of the field {{ field | show }}</p>
<table>{% for name, count in classes.items() %}<tr><td>{{ name | show }}<td>{{ count }}
<td>{{ "{:.1%}".format(count / samples) }}</tr>{% endfor %}</table>{% endif %}
<h2>Shards</h2><table>
{% for shard in shards %}<tr><td>{{ shard.path | show }}
<td>{{ shard.samples if shard.is_readable else 'not read' }}<td>{{ shard.size_bytes | human }}</tr>
{% endfor %}</table><p>lightning-shards {{ version }} show</p></body></html>
"""


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


@dataclass(frozen=True, slots=True)
class ShownSample:
    """A sample as a sheet or a page shows it.

    Attributes:
        key: Its key.
        label: The text of the field with the label; empty without one.
        image: The bytes of its image file; None if it has no image.
        fields: A text for each other field, by suffix; only for a page.
        png: Its thumbnail in base64; only for a page.
    """

    key: str
    label: str
    image: bytes | None
    fields: Mapping[str, str]
    png: str


def _show(options: Namespace) -> int:
    _check(options)
    urls, seen = shards_of(options), None
    written: dict[str, str | None] = {"output": None}
    with closing(Storages(remote_storages(settings_of(options)))) as storages:
        tables = TabledShards(options.cache, storages)
        if options.html is not None:
            seen = survey(urls, tables.look, processes=options.processes)
            shards = zip(urls, seen.shards, strict=True)
            urls = [url for url, shard in shards if shard.samples]
        samples = _pick(urls, tables, options)
        if seen is None or options.output is not None:
            written["output"] = _write_sheet(samples, options)
        if seen is not None:
            written["html"] = _write_page(urls, seen, samples, tables, options)
    labels = [f"{sample.key} {sample.label}".strip() for sample in samples]
    if options.json:
        print(json.dumps({**written, "labels": labels}))
    else:
        files = " and ".join(path for path in written.values() if path is not None)
        print(f"wrote {files}: {len(samples):,} samples")
    return 0 if seen is None else status_of(seen.failures)


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


def _pick(urls: Sequence[str], tables: TabledShards, options: Namespace) -> list[ShownSample]:
    if not urls:
        raise ConfigError("no shard holds a sample that can be read; see `lightning-shards verify`")
    classes = classes_of(urls, options.label, options.storage_options)
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
    image = sample.read(field) if field is not None and field in sample.sizes else None
    label = ""
    if options.label in sample.sizes:
        text = sample.read(options.label).decode("utf-8", "replace").strip()
        label = with_class_name(text, classes)[:_MAX_LABEL]
    others = [suffix for suffix in sample.sizes if suffix not in (field, options.label)]
    texts = {suffix: preview(sample, suffix) for suffix in others if options.html is not None}
    fields = {suffix: text or human(sample.sizes[suffix]) for suffix, text in texts.items()}
    thumbnail = None
    if image is not None and options.html is not None:
        thumbnail = make_thumbnail(image, options.size)
    png = "" if thumbnail is None else b64encode(png_of(thumbnail)).decode()
    return ShownSample(sample.key, label, image, fields, png)


def _image_field(suffixes: Sequence[str]) -> str | None:
    from lightning_shards.samples.decoders import Decoding, decoding_of

    return next((suffix for suffix in suffixes if decoding_of(suffix) == Decoding("rgb")), None)


def _write_sheet(samples: Sequence[ShownSample], options: Namespace) -> str:
    with_images = [(sample, sample.image) for sample in samples if sample.image is not None]
    if not with_images:
        wanted = f"field {options.image!r}" if options.image else "field with images"
        raise ConfigError(
            f"none of {len(samples)} samples has a {wanted}; see `lightning-shards info`, or make "
            "a page of fields and texts by --html"
        )
    images = [image for _, image in with_images]
    captions = [(sample.key, sample.label) for sample, _ in with_images]
    output = options.output or _SHEET
    sheet = contact_sheet(images, captions, columns=options.columns, size=options.size)
    replace_file(output, sheet)
    return str(output)


def _write_page(
    urls: Sequence[str],
    seen: Survey,
    samples: Sequence[ShownSample],
    tables: TabledShards,
    options: Namespace,
) -> str:
    from jinja2 import Environment

    field = options.label or "cls"
    sizes, classes = seen.fields.get(field), {}
    if sizes is not None and sizes.most <= _MAX_CLASS_BYTES:
        counts = class_counts(urls, field, tables, processes=options.processes)
        known = classes_of(urls, field, options.storage_options)
        classes = {with_class_name(label, known): count for label, count in counts.most_common()}
    chosen = "evenly spaced" if options.seed is None else f"drawn with seed {options.seed}"
    environment: Any = Environment(autoescape=True)
    environment.filters |= {"human": human, "show": printable}
    page: str = environment.from_string(_PAGE).render(
        heading="::".join(map(redact_pattern, options.urls)),
        choice=f"{len(samples):,} of {seen.samples:,}, {chosen}",
        tile=options.size,
        size=human(seen.size_bytes),
        samples=seen.samples,
        fields=seen.fields,
        findings=sorted(seen.findings, key=lambda finding: not finding.is_failure),
        shards=seen.shards,
        shown=samples,
        field=field,
        classes=classes,
        version=__version__,
    )
    _check(options)  # another program may have written it meanwhile
    replace_file(options.html, page.encode("utf-8", "backslashreplace"))
    return str(options.html)
