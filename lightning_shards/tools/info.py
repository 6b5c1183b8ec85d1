"""`lightning-shards info`: shows the contents of shards in numbers."""

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from lightning_shards.dataprep.show import TabledShards, class_counts
from lightning_shards.dataprep.survey import FieldSizes, Survey, survey
from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.storage.remote import remote_storages
from lightning_shards.shards.storage.schemes import Storages
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

_EPILOG = """Sizes are those of members. Of remote shards the member tables are read that lie beside
them, as `index --upload` puts them there. Exit status: 0, or 1 if something is wrong with the
shards, 2 not done, or some shards could not be read."""
_MAX_FIELDS = 30
_MAX_CLASSES = 20
_BAR = 40


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("info", "Show shards, samples, fields and their sizes.", _EPILOG)
    add = parser.add_argument
    add(
        "--classes",
        nargs="?",
        const="cls",
        metavar="FIELD",
        help="also read this field (default: cls) of every sample, and count its values",
    )
    add(
        "--exclude",
        action="append",
        metavar="FILE",
        help="also say how many samples this list of keys leaves; may be given several times",
    )
    add(
        "--keep",
        type=filter_option,
        metavar="RULE",
        help="also say how many samples are kept by an import path, or by parts such as "
        "'{hash_of: key, of: 20, parts: [0]}'",
    )
    add_shard_options(parser)
    run_tool("info", _info, parser.parse_args(arguments))


def _info(options: Namespace) -> int:
    urls = shards_of(options)
    with closing(Storages(remote_storages(settings_of(options)))) as storages:
        tables = TabledShards(options.cache, storages)
        seen = survey(urls, tables.look, processes=options.processes)
        _require_field(options.classes, seen)
        classes: Counter[str] = Counter()
        if options.classes:
            sound = [url for url, shard in zip(urls, seen.shards, strict=True) if shard.samples]
            classes = class_counts(sound, options.classes, tables, processes=options.processes)
    document = _document(seen, classes)
    document["kept"] = samples_left(urls, options)
    known = classes_of(urls, options.classes, options.storage_options)
    names = {label: known.name_of(label) for label in classes} if known else {}
    document["class_names"] = {label: name for label, name in names.items() if name}
    if options.json:
        print(json.dumps(document))
    else:
        _print(seen, document)
    return status_of(seen.failures)


def _require_field(name: str | None, seen: Survey) -> None:
    """Refuse a field of classes that no sample has, such as the first shard behind --classes."""
    if name and seen.fields and name not in seen.fields:
        raise ConfigError(
            f"no sample has the field {name!r} that follows --classes; it is one of "
            f"{', '.join(list(seen.fields)[:_MAX_FIELDS])}, and shards are named before it"
        )


def _document(seen: Survey, classes: Counter[str]) -> dict[str, Any]:
    sound = [shard for shard in seen.shards if shard.is_readable]
    keys = [key for shard in sound for key in shard.example_keys]
    return {
        "shards": len(seen.shards),
        "samples": seen.samples,
        "bytes": seen.size_bytes,
        "samples_per_shard": _spread([shard.samples for shard in sound]),
        "bytes_per_shard": _spread([shard.size_bytes for shard in sound]),
        "example_keys": keys[:2] + keys[-1:] if len(keys) > 2 else keys,  # noqa: PLR2004
        "fields": {suffix: _field(sizes) for suffix, sizes in seen.fields.items()},
        "classes": dict(classes.most_common()),
        "findings": [finding.as_json() for finding in seen.findings],
    }


def _field(sizes: FieldSizes) -> dict[str, float]:
    return {
        "samples": sizes.samples,
        "bytes": sizes.total,
        "least": sizes.least,
        "mean": sizes.total / sizes.samples,
        "most": sizes.most,
    }


def _spread(values: Sequence[int]) -> dict[str, float]:
    """Minimum, median and maximum."""
    if not values:
        return {"least": 0, "median": 0, "most": 0}
    return {"least": min(values), "median": float(np.median(values)), "most": max(values)}


def _print(seen: Survey, document: Mapping[str, Any]) -> None:
    held = f"{count_of(seen.samples, 'sample')} in {count_of(len(seen.shards), 'shard')}"
    print(f"{held}, {human(seen.size_bytes)}")
    if document["kept"] is not None:
        print(f"{document['kept']:,} of them are left by --keep and --exclude")
    samples, size = document["samples_per_shard"], document["bytes_per_shard"]
    print(
        f"a shard: {samples['least']:,} to {samples['most']:,} samples (median "
        f"{samples['median']:,.0f}), {human(size['least'])} to {human(size['most'])}"
    )
    print(f"keys: {', '.join(map(printable, document['example_keys']))}\n")
    rows = [["field", "samples", "total", "least", "mean", "most"]]
    for suffix, sizes in list(seen.fields.items())[:_MAX_FIELDS]:
        numbers = (sizes.total, sizes.least, sizes.total / sizes.samples, sizes.most)
        rows.append([printable(suffix), f"{sizes.samples:,}", *map(human, numbers)])
    print(table(rows))
    if len(seen.fields) > _MAX_FIELDS:
        print(f"and {len(seen.fields) - _MAX_FIELDS:,} more fields")
    if document["classes"]:
        _print_classes(document["classes"], document["class_names"], seen.samples)
    print()
    print_findings(seen.findings)


def _print_classes(classes: Mapping[str, int], names: Mapping[str, str], samples: int) -> None:
    print(f"\n{len(classes):,} classes")
    counts = list(classes.items())[:_MAX_CLASSES]
    rows: list[list[str]] = []
    for label, count in counts:
        named = printable(f"{label} {names.get(label, '')}".rstrip())
        rows.append([named, f"{count:,}", f"{count / samples:.1%}"])
    for line, (_, count) in zip(table(rows).splitlines(), counts, strict=True):
        print(f"  {line}  {'#' * round(_BAR * count / counts[0][1])}")
