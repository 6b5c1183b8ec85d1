"""`lightning-shards plan`: shows an epoch in numbers before it is run."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from math import lcm
from typing import TYPE_CHECKING, Any, Final

from lightning_shards.plan.strands import shares_of_nodes
from lightning_shards.tools.console import config_parser, report, require_large_enough, run_tool
from lightning_shards.tools.footprint import DataShape, Workers, footprint, sharing_of_nodes

if TYPE_CHECKING:
    from lightning_shards.plan.epoch import EpochPlan
    from lightning_shards.readers.source import Source

_EPILOG: Final = """\
Bytes and shards are those of one node, which has the trainer's devices, else 8. The bytes of the
cache would hold all shards that it reads, or of shuffle_strands its share; of a mixture all samples
count as equally large. Of a mixture there is a table of its components, with samples and passes of
epoch 0 and of the run. Of several nodes: how often all of them together fetch what an epoch serves,
from how many runs rank 0 takes its first batch (one that two shards share counts twice), and which
settings give each node runs of its own, so that all is fetched once. With pool: ray: the bytes
that a rank receives a second at 1,000 samples/s, as its first sample has them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    what = "Show the steps, drops, shards and bytes of an epoch."
    parser = config_parser("plan", what, _EPILOG, required=True)
    add = parser.add_argument
    add("--split", default="train", help="train, val, test or predict; or a set: val/NAME")
    add("--world-size", type=int, metavar="N", help="ranks; default: of the config's trainer")
    run_tool("plan", _plan, parser.parse_args(arguments))


def _plan(options: Namespace) -> int:
    from lightning_shards.build.composition import component_rows
    from lightning_shards.dataprep.index import shard_bytes
    from lightning_shards.tools.configured_data import open_data, trainer_size

    require_large_enough(options, world_size=1)
    configured = open_data(options.config)
    trainer = trainer_size(options.config, "--world-size", options.world_size)
    source = configured.source(options.split)
    description, epochs = source.describe(), source.epochs
    index, plan = description.index, epochs.plan(options.world_size or trainer.world_size)
    plan.require_steps(options.split, is_nominal=description.is_nominal)
    assert index is not None  # the source of a configuration reads shards
    data = DataShape(
        shards=index.num_shards,
        samples=epochs.samples if index.samples is None else index.samples,
        size_bytes=shard_bytes(index) or index.size_bytes,
        is_streamed=description.is_streamed,
    )
    per_rank = 0 if configured.loader_config.pool == "inline" else configured.num_workers
    workers = Workers(trainer.devices or 8, per_rank, description.shuffle_buffer)
    document: dict[str, Any] = {
        "split": options.split,
        "sampling": description.sampling,
        "reader": description.reader,
        "shards": index.num_shards,
        "samples": epochs.samples,
        "held": index.samples,
        "kept": None if index.kept is None else index.kept.samples,
        "bytes": data.size_bytes,
        **_epoch(plan, description.sampling),
        **asdict(footprint(plan, data, workers, description.sampling, run=description.run)),
        **_sharing(source, plan, workers.ranks, data.size_bytes),
        **(_received(source) if configured.loader_config.pool == "ray" else {}),
        "components": component_rows(description, trainer.epochs) or None,
    }
    report(document, as_json=options.json)
    return 0


def _epoch(plan: "EpochPlan", sampling: str) -> dict[str, Any]:
    return {
        "batch_size": plan.batch_size,
        "remainder": plan.remainder,
        "world_size": plan.world_size,
        "steps": plan.steps,
        "served": plan.served,
        # With draws with replacement an epoch is nominal and drops nothing.
        "dropped": 0 if sampling == "resampled" else plan.dropped,
        "repeated": plan.padded,
        "batch_sizes": sorted({*plan.sizes(0), *plan.sizes(plan.steps - 1)}),
    }


def _sharing(
    source: "Source", plan: "EpochPlan", ranks: int, size_bytes: int | None
) -> dict[str, Any]:
    """How several nodes share what an epoch reads by offsets; {} where it is drawn or streamed."""
    from lightning_shards.readers.indexed import IndexedSource

    nodes, description = -(-plan.world_size // ranks), source.describe()
    is_indexed = isinstance(source, IndexedSource)
    if not is_indexed or nodes == 1 or description.sampling not in {"shuffled", "mixture"}:
        return {}
    fetches, runs = sharing_of_nodes(source.order, source.epochs, ranks, plan.world_size)
    told: dict[str, Any] = {"fetches": fetches, "runs_in_batch": runs}
    if description.mixture is None:
        width = ranks * plan.batch_size
        told["own_runs"] = f"shuffle_width={width}, and shuffle_strands any multiple of {nodes}"
        told["own_runs"] += (
            f" with shuffle_block at least {lcm(width, description.run or 1)} x that"
        )
    if (shares := shares_of_nodes(source.order, nodes)) > 1 and size_bytes is not None:
        told["cache_bytes"] = size_bytes // shares
    return told


def _received(source: "Source") -> dict[str, Any]:
    """What comes from Ray actors, and when they pay."""
    from lightning_shards.plan.place import Place
    from lightning_shards.workers.inline import try_first_sample
    from lightning_shards.workers.messages import batch_bytes

    return {
        "received_bytes_per_s": batch_bytes(try_first_sample(source, Place()).batch, 1000).total,
        "ray_pays_for": "heavy transforms, video, and large images that become small crops; not "
        "for plain JPEGs where a GPU has 12 cores",
    }
