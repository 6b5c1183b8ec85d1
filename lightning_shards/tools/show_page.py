"""The page of `lightning-shards show --html`: one file without scripts that loads nothing else.

The page is built as a tree of elements, which escapes keys, texts and names when it is written: a
name in a shard can hold anything. Its content security policy also forbids scripts and downloads.
"""

import xml.etree.ElementTree as ET
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_shards import __version__
from lightning_shards.dataprep.inspection.contact_sheet import shortened
from lightning_shards.dataprep.inspection.contents import Content
from lightning_shards.dataprep.inspection.findings import Finding
from lightning_shards.dataprep.inspection.survey import FieldSizes, ShardSurvey, Survey
from lightning_shards.dataprep.inspection.thumbnails import Thumbnail
from lightning_shards.errors import count_of
from lightning_shards.tools.console import human, printable
from lightning_shards.tools.page_style import STYLE

_POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
_MAX_FIELDS: Final = 30
_MAX_CLASSES: Final = 50
_MAX_SHARDS: Final = 500
_MAX_FINDINGS: Final = 100
_FEW_SHARDS: Final = 12  # a list of so many is open from the beginning
_MAX_KEY: Final = 100  # letters; all of a longer key are shown where the pointer rests on it
_SECTION_OF: Final = {"size": "shards"}
_TEXT_TILE: Final = 260  # CSS pixels: least width of a sample without an image
_TILE: Final = 132  # and of one with a small image, so that its caption can be read


@dataclass(frozen=True, slots=True)
class ShownSample:
    """A sample as a page shows it.

    Attributes:
        key: Its key.
        label: The text of the field with the label; empty without one.
        image: The bytes of its image file; None if it has no image.
        fields: A text for each other field, by suffix.
    """

    key: str
    label: str
    image: bytes | None
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """How often each class occurs.

    Attributes:
        field: The field that names the class of a sample.
        counts: Number of samples by class, the most frequent class first.
    """

    field: str
    counts: Mapping[str, int]


def make_page(
    heading: str,
    choice: str,
    samples: Sequence[tuple[ShownSample, Thumbnail | None]],
    surveyed: Survey,
    contents: Mapping[str, Content],
    classes: ClassCounts | None,
) -> str:
    """The whole page.

    Args:
        heading: The shards as the user named them.
        choice: How the samples were chosen.
        samples: The samples, with thumbnails of the images that can be decoded.
        surveyed: The numbers of all shards, and the findings.
        contents: The contents of fields, by suffix.
        classes: The classes, if there are any.
    """
    body = _element(
        "body",
        _header(heading, surveyed, classes),
        _element(
            "main",
            _findings(surveyed.findings),
            _samples(samples, choice),
            _fields(surveyed, contents),
            *([_classes(classes, surveyed.samples)] if classes else []),
            _shards(surveyed.shards),
        ),
        _element("footer", f"lightning-shards {__version__} show"),
    )
    page = ET.tostring(
        _element("html", _head(heading), body, lang="en"), encoding="unicode", method="html"
    )
    return f"<!DOCTYPE html>\n{page}\n"


def _head(heading: str) -> ET.Element:
    head = _element(
        "head",
        _element("meta", charset="utf-8"),
        _element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _element("meta", **{"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        _element("title", f"{heading} · samples"),
    )
    ET.SubElement(head, "style").text = STYLE
    return head


def _element(tag: str, *children: ET.Element | str, **attributes: str) -> ET.Element:
    """An element with these children; control characters in texts and attributes are escaped."""
    values = {name.rstrip("_"): printable(value) for name, value in attributes.items()}
    element = ET.Element(tag, values)
    for child in children:
        if not isinstance(child, str):
            element.append(child)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + printable(child)
        else:
            element.text = (element.text or "") + printable(child)
    return element


def _section(title: str, *children: ET.Element | str, note: str = "") -> ET.Element:
    heading = [_element("h2", title)] + ([_element("p", note, class_="note")] if note else [])
    return _element("section", *heading, *children, id=title.lower())


def _header(heading: str, surveyed: Survey, classes: ClassCounts | None) -> ET.Element:
    numbers = {
        "samples": f"{surveyed.samples:,}",
        "shards": f"{len(surveyed.shards):,}",
        "fields": f"{len(surveyed.fields):,}",
        "size": human(surveyed.size_bytes),
    }
    if classes:
        numbers["classes"] = f"{len(classes.counts):,}"
    cells = [
        _element(
            "div",
            _element("dt", name),
            _element("dd", _element("a", value, href=f"#{_SECTION_OF.get(name, name)}")),
        )
        for name, value in numbers.items()
    ]
    return _element("header", _element("h1", heading), _element("dl", *cells, class_="numbers"))


def _findings(findings: Sequence[Finding]) -> ET.Element:
    in_order = sorted(findings, key=lambda finding: not finding.is_failure)
    rows = [
        _element(
            "li",
            _element("strong", f"{'wrong' if finding.is_failure else 'note'}: {finding.rule}"),
            _element("span", _location(finding), finding.message),
            class_="wrong" if finding.is_failure else "unusual",
        )
        for finding in in_order[:_MAX_FINDINGS]
    ]
    if not rows:
        fine = "Nothing is wrong with names and headers; lightning-shards verify reads every byte."
        return _section("Findings", _element("p", fine, class_="ok"))
    rest = len(findings) - len(rows)
    more = f"{rest:,} more: see lightning-shards info --json" if rest else ""
    return _section("Findings", _element("ul", *rows, class_="findings"), note=more)


def _location(finding: Finding) -> str:
    is_named = finding.shard is None or finding.shard in finding.message
    return "" if is_named else f"{finding.shard}: "


def _samples(samples: Sequence[tuple[ShownSample, Thumbnail | None]], choice: str) -> ET.Element:
    widths = [thumbnail.size[0] for _, thumbnail in samples if thumbnail]
    is_wordy = any(sample.fields for sample, _ in samples)
    tile = max([_TEXT_TILE if is_wordy and not widths else _TILE, *widths])
    tiles = [_sample(sample, thumbnail) for sample, thumbnail in samples]
    tallest = max((thumbnail.size[1] for _, thumbnail in samples if thumbnail), default=0)
    style = f"--tile: {tile}px; --tall: {tallest}px"
    grid = _element("ul", *tiles, class_="samples", style=style)
    return _section("Samples", grid, note=choice)


def _sample(sample: ShownSample, thumbnail: Thumbnail | None) -> ET.Element:
    parts: list[ET.Element] = []
    if thumbnail is not None:
        parts.append(_element("div", _image(sample.key, thumbnail), class_="picture"))
    elif sample.image is not None:
        parts.append(_element("div", "cannot be decoded", class_="picture broken"))
    if sample.label:
        parts.append(_element("p", sample.label, class_="label", dir="auto"))
    key = shortened(sample.key, _MAX_KEY, len, middle=True)
    parts.append(_element("p", key, class_="key", title=sample.key))
    if sample.fields:
        pairs = [
            _element("div", _element("dt", suffix), _element("dd", text, dir="auto"))
            for suffix, text in sample.fields.items()
        ]
        parts.append(_element("dl", *pairs))
    return _element("li", *parts)


def _image(key: str, thumbnail: Thumbnail) -> ET.Element:
    media_type, data = thumbnail.encoded()
    wide, high = thumbnail.original
    return _element(
        "img",
        src=f"data:{media_type};base64,{b64encode(data).decode()}",
        alt=key,
        title=f"{wide} x {high} pixels",
        width=str(thumbnail.size[0]),
        height=str(thumbnail.size[1]),
        class_="enlarged" if thumbnail.factor > 1 else "",
    )


def _fields(surveyed: Survey, contents: Mapping[str, Content]) -> ET.Element:
    cards = [
        _field(suffix, sizes, surveyed.samples, contents.get(suffix))
        for suffix, sizes in list(surveyed.fields.items())[:_MAX_FIELDS]
    ]
    rest = len(surveyed.fields) - len(cards)
    more = f"{rest:,} more fields: see lightning-shards info" if rest else ""
    return _section("Fields", _element("ul", *cards, class_="fields"), note=more)


def _field(suffix: str, sizes: FieldSizes, samples: int, content: Content | None) -> ET.Element:
    share = "all samples" if sizes.samples == samples else f"{sizes.samples:,} of {samples:,}"
    kind = f"{content.kind} · {share}" if content else share
    spread = (
        human(sizes.smallest)
        if sizes.smallest == sizes.largest
        else f"{human(sizes.smallest)} to {human(sizes.largest)}, "
        f"mean {human(sizes.total / max(sizes.samples, 1))}"
    )
    return _element(
        "li",
        _element("h3", suffix),
        _element("p", kind),
        _element("p", f"{spread}; {human(sizes.total)} in total"),
        *([_histogram(sizes)] if np.count_nonzero(sizes.bins) > 1 else []),
    )


def _histogram(sizes: FieldSizes) -> ET.Element:
    """Bars of the numbers of members by size, each bar twice as large as the one before it."""
    bits = np.flatnonzero(sizes.bins)
    most = int(sizes.bins.max())
    bars = [
        _element(
            "span",
            style=f"height: {100 * count / most:.1f}%",
            title=f"{count:,} below {human(1 << bit)}",
        )
        for bit, count in enumerate(sizes.bins.tolist())
        if bits[0] <= bit <= bits[-1]
    ]
    return _element("div", *bars, class_="histogram", role="img", **{"aria-label": "sizes"})


def _classes(classes: ClassCounts, samples: int) -> ET.Element:
    shown = list(classes.counts.items())[:_MAX_CLASSES]
    most = max(classes.counts.values(), default=1)
    rows = [
        _element(
            "li",
            _element("span", name or "(empty)", class_="name", dir="auto"),
            _element(
                "span", _element("span", style=f"width: {100 * count / most:.1f}%"), class_="bar"
            ),
            _element("span", f"{count:,}", class_="count"),
            _element("span", f"{count / max(samples, 1):.1%}", class_="share"),
        )
        for name, count in shown
    ]
    rest = len(classes.counts) - len(shown)
    more = f"; {rest:,} more: see lightning-shards info --classes" if rest else ""
    note = f"{len(classes.counts):,} values of the field {classes.field}{more}"
    return _section("Classes", _element("ol", *rows, class_="classes"), note=note)


def _shards(shards: Sequence[ShardSurvey]) -> ET.Element:
    rows = [
        _element(
            "tr",
            _element("td", shard.path),
            _element("td", f"{shard.samples:,}" if shard.is_readable else "not read"),
            _element("td", human(shard.size_bytes)),
        )
        for shard in shards[:_MAX_SHARDS]
    ]
    titles = _element("tr", *(_element("th", title) for title in ("shard", "samples", "size")))
    table = _element("table", _element("thead", titles), _element("tbody", *rows))
    rest = len(shards) - len(rows)
    summary = _element("summary", count_of(len(shards), "shard"))
    more = [_element("p", f"and {rest:,} more", class_="note")] if rest else []
    is_open = {"open": ""} if len(shards) <= _FEW_SHARDS else {}
    return _section("Shards", _element("details", summary, table, *more, **is_open))
