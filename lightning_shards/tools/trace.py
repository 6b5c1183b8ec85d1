"""`lightning-shards trace`: lists the samples that every rank sees at given steps."""

import re
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.urls import redact
from lightning_shards.tools.console import epoch_parser, report, run_tool

_EPILOG: Final = """\
Steps and epochs count from 0. The answer is what training gets in an epoch that one run began at
its start with this world size, batch size and, for the stream reader, number of workers:
  - the indexed reader is asked by arithmetic, at any step;
  - the stream reader reads its shards again from the epoch's start. A run that resumed inside of
    the epoch got other batches from there on; and where the counts of shards are unknown, only
    epoch 0 is told.
Take the config.yaml that the run saved in its log folder: it has the command line's options too.
A sample of weight 0, which only fills up a last step, is listed like the others. Of a mix each
sample comes with the name of its component.

  lightning-shards trace --config config.yaml --epoch 3 --steps 1234:1236

A sample is looked at by `tar -xf SHARD KEY.SUFFIX`.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; an error is one line on stderr and exit status 2."""
    what = "Print the keys and ids of the samples of every rank's batches."
    parser = epoch_parser("trace", what, _EPILOG)
    add = parser.add_argument
    add("--epoch", required=True, type=int, help="number of the epoch")
    add("--steps", required=True, metavar="A:B", help="from step A up to, not B")
    run_tool("trace", _trace, parser.parse_args(arguments))


def _trace(options: Namespace) -> int:
    from lightning_shards.build.loaders import make_pool
    from lightning_shards.plan.place import Place
    from lightning_shards.readers.source import batch_keys
    from lightning_shards.tools.configured_data import open_data, source_of, trainer_size

    steps = _parse_steps(options.steps)
    data = open_data(options.config)
    trainer = trainer_size(options.config, "--world-size", options.world_size)
    world_size = options.world_size or trainer.world_size
    source = source_of(data, options.split)
    description = source.describe()
    source.epochs.plan(world_size).require_steps(options.split, is_nominal=description.is_nominal)
    pool = make_pool(data.loader, data.num_workers, source, Place(0, world_size))
    workers = pool.describe().num_producers
    ranks = [
        batch_keys(source, Place(rank, world_size), options.epoch, steps, num_workers=workers)
        for rank in range(world_size)
    ]
    rows: list[dict[str, Any]] = []
    for step, batches in zip(steps, zip(*ranks, strict=True), strict=True):
        for rank, batch in enumerate(batches):
            for number, (key, shard, sample) in enumerate(batch):
                row: dict[str, Any] = {"step": step, "rank": rank, "row": number}
                if description.mixture is not None:
                    row["component"] = description.component_of(shard)
                rows.append(row | {"shard": shard, "sample": sample, "key": key})
    assert description.index is not None  # the source of a configuration reads shards
    urls = description.index.urls
    numbers: list[int] = sorted({row["shard"] for row in rows})
    document = {
        "epoch": options.epoch,
        "world_size": world_size,
        "split": options.split,
        "shards": [{"shard": number, "url": redact(urls[number])} for number in numbers],
        "rows": rows,
    }
    report(document, as_json=options.json)
    return 0


def _parse_steps(text: str) -> range:
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ConfigError(
            f"--steps must be A:B with 0 <= A < B < 10**18, as in 1234:1236, got {text[:40]!r}"
        )
    return range(int(match[1]), int(match[2]))
