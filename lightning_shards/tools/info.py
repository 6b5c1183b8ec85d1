"""`lightning-shards info`: shows the contents of shards in numbers."""

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import numpy as np

from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.survey import ShardSurvey, describe_table, survey
from lightning_shards.errors import ConfigError
from lightning_shards.remote.storage import remote_storages
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.tools.console import (
    report,
    run_tool,
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
    what = "also read this field (default: cls) of every sample, and count its values"
    parser.add_argument("--classes", nargs="?", const="cls", metavar="FIELD", help=what)
    run_tool("info", _info, parser.parse_args(arguments))


def _info(options: Namespace) -> int:
    urls, field = shards_of(options), options.classes
    counts: Counter[str] = Counter()
    with closing(Storages(remote_storages(settings_of(options)))) as storages:
        tables = TableStore(options.cache, storages=storages, takes_split=True)
        seen = survey(urls, partial(_look, tables=tables), processes=options.processes)
        if field and seen.fields and field not in seen.fields:  # as a shard behind --classes
            raise ConfigError(
                f"no sample has the field {field!r} that follows --classes; it is one of "
                f"{', '.join(list(seen.fields)[:_MAX_FIELDS])}, and shards are named before it"
            )
        if field:
            sound = [url for url, shard in zip(urls, seen.shards, strict=True) if shard.samples]
            count = partial(_values, suffix=field, tables=tables, storages=storages)
            for values in map_parallel(count, sound, options.processes):
                counts.update(values)
    classes = {label: {"samples": count} for label, count in counts.most_common()}
    report(seen.document() | {"classes": classes}, as_json=options.json)
    return status_of(seen.failures)


def _look(url: str, tables: TableStore) -> ShardSurvey:
    return describe_table(url, tables.table_of(url))


def _values(url: str, suffix: str, tables: TableStore, storages: Storages) -> Counter[str]:
    """How many samples of a shard have each value of a small text field."""
    with ShardReader(url, tables.table_of(url), storages.of(url)) as reader:
        samples = np.flatnonzero(reader.table.members_with([suffix]) >= 0).tolist()
        return Counter(
            reader.read(sample, suffix).strip().decode("utf-8", "replace") for sample in samples
        )
