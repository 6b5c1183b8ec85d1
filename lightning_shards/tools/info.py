"""`lightning-shards info`: shows the contents of shards in numbers."""

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from lightning_shards.dataprep.show import TabledShards, class_counts
from lightning_shards.dataprep.survey import Survey, survey
from lightning_shards.errors import ConfigError
from lightning_shards.shards.storage.remote import remote_storages
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.tools.console import report, run_tool
from lightning_shards.tools.shard_options import (
    classes_of,
    settings_of,
    shard_parser,
    shards_of,
    status_of,
)

_EPILOG = """\
Sizes are those of members, in bytes. Of remote shards the member tables are read that lie beside
them, as `index --upload` puts them there. Exit status: 0, or 1 if something is wrong with the
shards, 2 not done, or some shards could not be read."""
_MAX_FIELDS = 30


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
    run_tool("info", _info, parser.parse_args(arguments))


def _info(options: Namespace) -> int:
    urls, field = shards_of(options), options.classes
    counts: Counter[str] = Counter()
    with closing(Storages(remote_storages(settings_of(options)))) as storages:
        tables = TabledShards(options.cache, storages)
        seen = survey(urls, tables.look, processes=options.processes)
        if field:
            _require_field(field, seen)
            sound = [url for url, shard in zip(urls, seen.shards, strict=True) if shard.samples]
            counts = class_counts(sound, field, tables, processes=options.processes)
    known = classes_of(urls, field, options)
    names = {label: known.name_of(label) for label in counts} if known else {}
    document = _document(seen)
    if options.json:
        document["classes"] = dict(counts.most_common())
        document["class_names"] = {label: name for label, name in names.items() if name}
    else:
        document["classes"] = {
            f"{label} {names.get(label, '')}".rstrip(): {"samples": count}
            for label, count in counts.most_common()
        }
    document["findings"] = [finding.as_json() for finding in seen.findings]
    report(document, as_json=options.json)
    return status_of(seen.failures)


def _require_field(name: str, seen: Survey) -> None:
    """Refuse a field of classes that no sample has, such as the first shard behind --classes."""
    if seen.fields and name not in seen.fields:
        raise ConfigError(
            f"no sample has the field {name!r} that follows --classes; it is one of "
            f"{', '.join(list(seen.fields)[:_MAX_FIELDS])}, and shards are named before it"
        )


def _document(seen: Survey) -> dict[str, Any]:
    sound = [shard for shard in seen.shards if shard.is_readable]
    keys = [key for shard in sound for key in shard.example_keys]
    return {
        "shards": len(seen.shards),
        "samples": seen.samples,
        "bytes": seen.size_bytes,
        "samples_per_shard": _spread([shard.samples for shard in sound]),
        "bytes_per_shard": _spread([shard.size_bytes for shard in sound]),
        "example_keys": keys[:2] + keys[-1:] if len(keys) > 2 else keys,  # noqa: PLR2004
        "fields": {
            suffix: {
                "samples": sizes.samples,
                "bytes": sizes.total,
                "least": sizes.least,
                "mean": sizes.total / sizes.samples,
                "most": sizes.most,
            }
            for suffix, sizes in seen.fields.items()
        },
    }


def _spread(values: Sequence[int]) -> dict[str, float]:
    if not values:
        return {"least": 0, "median": 0, "most": 0}
    return {"least": min(values), "median": float(np.median(values)), "most": max(values)}
