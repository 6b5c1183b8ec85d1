"""`lightning-shards plan`: shows an epoch in numbers before it is run."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from lightning_shards.errors import count_of
from lightning_shards.plan.mixture import samples_of_epoch, stages_of
from lightning_shards.plan.pieces import DataShape, Workers, footprint
from lightning_shards.tools.console import config_parser, report, require_large_enough, run_tool

if TYPE_CHECKING:
    from lightning_shards.readers.source import Source, SourceDescription

_EPILOG: Final = """\
Bytes and shards are those of one node. The bytes of the cache would hold all
shards that it reads; of a mixture all samples count as equally large. Of a mixture there is a table
of its components, with the samples and passes of epoch 0 and of the whole run, and a line for each
stage of its schedule."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    what = "Show the steps, drops, shards and bytes of an epoch."
    parser = config_parser("plan", what, _EPILOG, required=True)
    add = parser.add_argument
    add("--split", default="train", help="train, val, test or predict; or a set: val/NAME")
    add("--world-size", metavar="N,M", help="ranks to compare; default: the config's trainer")
    add("--ranks-per-node", type=int, metavar="N", help="default: the trainer's devices, else 8")
    run_tool("plan", _plan, parser.parse_args(arguments))


def _plan(options: Namespace) -> int:
    from lightning_shards.dataprep.index import shard_bytes
    from lightning_shards.tools.configured_data import open_data, require_split, world_sizes

    require_large_enough(options, ranks_per_node=1)
    configured = open_data(options.config)
    sizes, trainer = world_sizes("plan", options.config, options.world_size)
    require_split(configured, options.split)
    source = configured.source(options.split)
    description, epochs = source.describe(), source.epochs
    index = description.index
    assert index is not None  # the source of a configuration reads shards
    data = DataShape(
        shards=index.num_shards,
        samples=epochs.samples if index.samples is None else index.samples,
        size_bytes=shard_bytes(index) or index.size_bytes,
        is_streamed=description.is_streamed,
    )
    per_rank = 0 if configured.loader_config.pool == "inline" else configured.num_workers
    ranks = options.ranks_per_node or trainer.devices or 8
    workers = Workers(ranks, per_rank, description.shuffle_buffer)
    rows = [_epoch(source, data, workers, size) for size in sizes]
    notes = (_remark(row, 0 if description.mixture else epochs.samples) for row in rows)
    document: dict[str, Any] = {
        "split": options.split,
        "sampling": description.sampling,
        "reader": description.reader,
        "shards": index.num_shards,
        "samples": epochs.samples,
        "held": index.samples,
        "kept": None if index.kept is None else index.kept.samples,
        "bytes": data.size_bytes,
        "batch_size": epochs.batch_size,
        "remainder": epochs.remainder,
        "epochs": rows,
        "notes": list(filter(None, notes)) or None,
        **_mixture(description, trainer.epochs),
    }
    report(document, as_json=options.json)
    return 0


def _epoch(source: "Source", data: DataShape, workers: Workers, world_size: int) -> dict[str, Any]:
    """One column of the table."""
    description, plan = source.describe(), source.epochs.plan(world_size)
    needs = footprint(plan, data, workers, description.sampling, run=description.run)
    sizes = [size for step in (0, plan.steps - 1) if plan.steps for size in plan.sizes(step)]
    return {
        "world_size": world_size,
        "steps": plan.steps,
        "served": plan.served,
        # With draws with replacement an epoch is nominal and drops nothing.
        "dropped": 0 if description.sampling == "resampled" else plan.dropped,
        "repeated": plan.padded,
        "batch_sizes": sorted(set(sizes)),
        **asdict(needs),
    }


def _mixture(description: "SourceDescription", epochs: int | None) -> dict[str, Any]:
    """What epoch 0 and the run hold of each component; empty if there is no mixture."""
    if description.mixture is None or description.index is None:
        return {}
    slots, stages = description.mixture.slots, stages_of(description.mixture.slots)
    in_epoch = samples_of_epoch(slots, 0).tolist()
    in_run = None if epochs is None else slots.before(epochs * slots.epoch_samples).tolist()
    rows: list[dict[str, Any]] = []
    for number, part in enumerate(description.index.components):
        known = part.known_samples
        row: dict[str, Any] = {
            "component": slots.names[number],
            "samples": known,
            "shards": part.num_shards,
            "share": stages[0].weights[number] / sum(stages[0].weights),
            "in_epoch_0": in_epoch[number],
            "passes": in_epoch[number] / known if known else None,
        }
        if in_run is not None:
            passes = in_run[number] / known if known else None
            row |= {"in_run": in_run[number], "passes_of_run": passes}
        rows.append(row)
    weights = [
        {
            "weights_from_epoch": stage.begin / slots.epoch_samples,
            **dict(zip(slots.names, stage.weights, strict=True)),
        }
        for stage in stages
    ]
    return {"round": slots.schedule.round_samples, "components": rows, "stages": weights}


def _remark(row: dict[str, Any], samples: int) -> str:
    """What to say of an epoch without steps, or of one that drops many of these samples."""
    from lightning_shards.build.loaders import drop_remark

    ranks = f"with {count_of(row['world_size'], 'rank')}"
    if not row["steps"]:
        return (
            f"{ranks} no step is full, and a run will refuse that; lower the batch size, raise "
            "dataset_size where it is nominal, or take remainder='pad'"
        )
    dropped = drop_remark(row["dropped"], samples) if samples else ""
    return f"{ranks} it {dropped}" if dropped else ""
