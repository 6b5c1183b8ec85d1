"""`lightning-shards info`: shows the contents of shards in numbers."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lightning_shards.dataprep.inspection.contents import Content, class_counts, contents_of
from lightning_shards.dataprep.inspection.survey import FieldSizes, Survey, survey
from lightning_shards.errors import ConfigError, count_of
from lightning_shards.tools.console import (
    human,
    print_findings,
    printable,
    run_tool,
    shard_parser,
    status_of,
    table,
)
from lightning_shards.tools.filter_options import filter_option, samples_left
from lightning_shards.tools.shard_options import (
    add_shard_options,
    classes_of,
    settings_of,
    shards_of,
)

_EPILOG = """Sizes are those of members; "zlib" is what compressing them would leave, tried on the
first ones. Remote shards are fetched whole, one at a time for each process (to TMPDIR), and a
second time for --classes. Exit status: 0, or 1 if something is wrong with the shards, 2 not
done, or some shards could not be read."""
_MAX_FIELDS = 30
_MAX_CLASSES = 20
_BAR = 40
_COMPRESSIBLE = 0.8


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("info", "Show shards, samples, fields and their sizes.", _EPILOG)
    parser.add_argument(
        "--classes",
        nargs="?",
        const="cls",
        metavar="FIELD",
        help="also read this field (default: cls) of every sample, and count its values",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        metavar="FILE",
        help="also say how many samples this list of keys leaves; may be given several times",
    )
    parser.add_argument(
        "--keep",
        type=filter_option,
        metavar="RULE",
        help="also say how many samples are kept by an import path, or by parts such as "
        "'{hash_of: key, of: 20, parts: [0]}'",
    )
    add_shard_options(parser)
    run_tool("info", _info, parser.parse_args(arguments))


def _info(options: Namespace) -> int:
    urls, settings = shards_of(options), settings_of(options)
    run: dict[str, Any] = {"cache": options.cache, "settings": settings}
    surveyed = survey(urls, processes=options.processes, **run)
    _require_field(options.classes, surveyed)
    sound: list[str] = []
    contents: dict[str, Content] = {}
    for url, shard in zip(urls, surveyed.shards, strict=True):
        if not shard.is_readable:
            continue
        sound.append(url)
        wanted = [suffix for suffix in shard.fields if suffix not in contents]
        if wanted and len(contents) < _MAX_FIELDS:
            contents |= contents_of(url, wanted[:_MAX_FIELDS], **run)
    classes: Counter[str] = Counter()
    if options.classes:
        classes = class_counts(sound, options.classes, processes=options.processes, **run)
    document = _document(surveyed, contents, classes)
    document["kept"] = samples_left(urls, options)
    known = classes_of(urls, options.classes, options.storage_options)
    names = {label: known.name_of(label) for label in classes} if known else {}
    document["class_names"] = {label: name for label, name in names.items() if name}
    if options.json:
        print(json.dumps(document))
    else:
        _print(surveyed, document, contents)
    return status_of(surveyed.failures)


def _require_field(name: str | None, surveyed: Survey) -> None:
    """Refuse a field of classes that no sample has, such as the first shard behind --classes."""
    if name and surveyed.fields and name not in surveyed.fields:
        raise ConfigError(
            f"no sample has the field {name!r} that follows --classes; it is one of "
            f"{', '.join(list(surveyed.fields)[:_MAX_FIELDS])}, and shards are named before it"
        )


def _document(found: Survey, contents: dict[str, Content], classes: Counter[str]) -> dict[str, Any]:
    sound = [shard for shard in found.shards if shard.is_readable]
    keys = [key for shard in sound for key in shard.example_keys]
    return {
        "shards": len(found.shards),
        "samples": found.samples,
        "bytes": found.size_bytes,
        "samples_per_shard": _spread([shard.samples for shard in sound]),
        "bytes_per_shard": _spread([shard.size_bytes for shard in sound]),
        "example_keys": keys[:2] + keys[-1:] if len(keys) > 2 else keys,  # noqa: PLR2004
        "fields": {
            suffix: _field(sizes) | (asdict(contents[suffix]) if suffix in contents else {})
            for suffix, sizes in found.fields.items()
        },
        "classes": dict(classes.most_common()),
        "findings": [finding.as_json() for finding in found.findings],
    }


def _spread(values: Sequence[int]) -> dict[str, float]:
    """Minimum, median and maximum."""
    if not values:
        return {"least": 0, "median": 0, "most": 0}
    return {"least": min(values), "median": float(np.median(values)), "most": max(values)}


def _field(sizes: FieldSizes) -> dict[str, Any]:
    """A field in plain values; the histogram has the upper bound of each bin that is not empty."""
    histogram = {str(1 << int(bits)): int(sizes.bins[bits]) for bits in np.flatnonzero(sizes.bins)}
    return {
        "samples": sizes.samples,
        "bytes": sizes.total,
        "least": sizes.smallest,
        "mean": sizes.total / max(sizes.samples, 1),
        "most": sizes.largest,
        "histogram": histogram,
    }


def _print(found: Survey, document: dict[str, Any], contents: dict[str, Content]) -> None:
    held = f"{count_of(found.samples, 'sample')} in {count_of(len(found.shards), 'shard')}"
    print(f"{held}, {human(found.size_bytes)}")
    if document["kept"] is not None:
        print(f"{document['kept']:,} of them are left by --keep and --exclude")
    samples, size = document["samples_per_shard"], document["bytes_per_shard"]
    print(
        f"a shard: {samples['least']:,} to {samples['most']:,} samples (median "
        f"{samples['median']:,.0f}), {human(size['least'])} to {human(size['most'])}"
    )
    print(f"keys: {', '.join(map(printable, document['example_keys']))}\n")
    rows = [["field", "samples", "total", "least", "mean", "most", "contents", "zlib"]]
    for suffix, sizes in list(found.fields.items())[:_MAX_FIELDS]:
        numbers = (sizes.total, sizes.smallest, sizes.total / sizes.samples, sizes.largest)
        held = contents.get(suffix)
        what = (held.kind, f"{held.ratio:.0%}") if held else ("", "")
        rows.append([printable(suffix), f"{sizes.samples:,}", *map(human, numbers), *what])
    print(table(rows))
    if len(found.fields) > _MAX_FIELDS:
        print(f"and {len(found.fields) - _MAX_FIELDS:,} more fields")
    for suffix, held in contents.items():
        if not held.is_compressed and held.ratio < _COMPRESSIBLE:
            print(f"{printable(suffix)} is not compressed; zlib would leave {held.ratio:.0%}")
    for suffix, sizes in list(found.fields.items())[:_MAX_FIELDS]:
        print(f"\nsizes of {printable(suffix)}, up to")
        bins = {human(float(size)): count for size, count in _field(sizes)["histogram"].items()}
        _print_bars(bins, sizes.samples)
    if document["classes"]:
        print(f"\n{len(document['classes']):,} classes")
        names: dict[str, str] = document["class_names"]
        counts = list(document["classes"].items())[:_MAX_CLASSES]
        shown = {f"{label} {names.get(label, '')}".rstrip(): count for label, count in counts}
        _print_bars(shown, found.samples)
    print()
    print_findings(found.findings)


def _print_bars(counts: dict[str, int], total: int) -> None:
    rows = [
        [printable(name), f"{count:,}", f"{count / max(total, 1):.1%}"]
        for name, count in counts.items()
    ]
    most = max(counts.values(), default=1)
    for line, count in zip(table(rows).splitlines(), counts.values(), strict=True):
        print(f"  {line}  {'#' * round(_BAR * count / most)}")
