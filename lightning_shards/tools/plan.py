"""`lightning-shards plan`: shows an epoch in numbers before it is run."""

from argparse import Namespace
from collections.abc import Sequence
from itertools import takewhile
from math import lcm
from typing import TYPE_CHECKING, Any, Final

from lightning_shards.plan.epoch import EpochPlan, EpochSchedule
from lightning_shards.plan.order import Order
from lightning_shards.plan.pieces import pieces_ahead
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.plan.strands import shares_of_nodes
from lightning_shards.tools.console import config_parser, report, require_large_enough, run_tool

if TYPE_CHECKING:
    from lightning_shards.readers.source import Source

_NODES_ASKED: Final = 8
_POSITIONS_ASKED: Final = 2**17
"""What `sharing_of_nodes` looks at: 10 ms for each 16,384 positions of a node."""

_EPILOG: Final = """\
A node has the trainer's devices, else 8, as ranks. The bytes of the cache are those of the shards
that a node reads: of all, or of shuffle_strands its share. Of a mixture there is a table of its
components, with samples and passes of epoch 0 and of the run. Of several nodes: how often all of
them together fetch what an epoch serves, from how many runs rank 0 takes its first batch (one that
two shards share counts twice), and which settings give each node runs of its own, so that all is
fetched once. With pool: ray: the bytes that a rank receives a second at 1,000 samples/s, as its
first sample has them."""


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
    size_bytes = shard_bytes(index) or index.size_bytes
    document: dict[str, Any] = {
        "split": options.split,
        "shards": index.num_shards,
        "samples": epochs.samples,
        "held": index.samples,
        "kept": None if index.kept is None else index.kept.samples,
        "bytes": size_bytes,
        "cache_bytes": size_bytes,
        "batch_sizes": sorted({*plan.sizes(0), *plan.sizes(plan.steps - 1)}),
        "world_size": plan.world_size,
        "steps": plan.steps,
        # With draws with replacement an epoch is nominal and drops nothing.
        "dropped": 0 if description.sampling == "resampled" else plan.dropped,
        "repeated": plan.padded,
        **_sharing(source, plan, trainer.devices or 8, size_bytes),
        **(_received(source) if configured.loader_config.pool == "ray" else {}),
        "components": component_rows(description, trainer.epochs) or None,
    }
    report(document, as_json=options.json)
    return 0


def _sharing(
    source: "Source", plan: EpochPlan, ranks: int, size_bytes: int | None
) -> dict[str, Any]:
    """How several nodes share what an epoch reads by offsets; {} where it is drawn or streamed."""
    from lightning_shards.readers.indexed import IndexedSource

    nodes, description = -(-plan.world_size // ranks), source.describe()
    is_indexed = isinstance(source, IndexedSource)
    if not is_indexed or nodes == 1 or description.sampling not in {"shuffled", "mixture"}:
        return {}
    fetches, runs = sharing_of_nodes(source.order, source.epochs, ranks, plan.world_size)
    told: dict[str, Any] = {"nodes": nodes, "fetches": fetches, "runs_in_batch": runs}
    if description.mixture is None:
        width, turns = ranks * plan.batch_size, lcm(ranks * plan.batch_size, description.run or 1)
        told["own_runs"] = (
            f"shuffle_width={width}, and shuffle_strands any multiple of {nodes} with "
            f"shuffle_block at least {turns} x that"
        )
    if (shares := shares_of_nodes(source.order, nodes)) > 1 and size_bytes is not None:
        told["cache_bytes"] = size_bytes // shares
    return told


def sharing_of_nodes(
    order: Order, epochs: EpochSchedule, ranks_of_node: int, world_size: int
) -> tuple[float, int]:
    """How often all nodes together fetch what an epoch serves, and the pieces of a rank's batch.

    The former is 1 where each node has its own pieces, and nearly the number of nodes where each
    needs all of them. It is that of the first blocks of an epoch, the latter of its first batch.

    Args:
        order: An order that gives each sample once.
        epochs: How the sequence is cut into epochs and steps.
        ranks_of_node: Ranks of each node; the last one may have fewer.
        world_size: Ranks of all nodes.
    """
    starts = range(0, world_size, ranks_of_node)
    fetched = served = 0
    for start in starts[:: -(-len(starts) // _NODES_ASKED)]:
        ranks = range(start, min(start + ranks_of_node, world_size))
        ahead = pieces_ahead(order, epochs, Cursor(), ranks=ranks, world_size=world_size)
        for block in takewhile(lambda each: not each.turn and each.start < _POSITIONS_ASKED, ahead):
            fetched += int((block.stops - block.starts).sum())
            served += block.stop - block.start
    first_steps = epochs.with_limit(1)
    ahead = pieces_ahead(order, first_steps, Cursor(), ranks=[0], world_size=world_size)
    of_batch = sum(len(block.shards) for block in takewhile(lambda each: not each.turn, ahead))
    return fetched / served * len(starts), of_batch


def _received(source: "Source") -> dict[str, Any]:
    """What comes from Ray actors, and when they pay."""
    from lightning_shards.workers.inline import try_first_sample
    from lightning_shards.workers.messages import batch_bytes

    return {
        "received_bytes_per_s": batch_bytes(try_first_sample(source, Place()).batch, 1000).total,
        "ray_pays_for": "heavy transforms, video, and large images that become small crops; not "
        "for plain JPEGs where a GPU has 12 cores",
    }
