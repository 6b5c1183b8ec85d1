"""`lightning-shards plan`: shows an epoch in numbers before it is run."""

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.plan.footprint import DataShape, Footprint, Workers, footprint
from lightning_shards.tools.console import (
    human,
    require_large_enough,
    run_tool,
    table,
    whole_numbers,
)
from lightning_shards.tools.plan_mixture import footprint_of_mixture, mixture_document
from lightning_shards.tools.plan_mixture_text import mixture_text
from lightning_shards.tools.plan_network import RATE, RemotePlan, remote_notes, remote_plan

if TYPE_CHECKING:
    from lightning_shards.config.splits import SplitConfig
    from lightning_shards.plan.epoch import EpochPlan
    from lightning_shards.readers.source import Source
    from lightning_shards.shards.index import ShardIndex
    from lightning_shards.tools.configured_data import ConfiguredData

_EPILOG = """Bytes, shards and memory are those of one node. "to fetch" is what it reads of remote
shards in an epoch with an empty cache, "later epochs" what it fetches where cache_gib keeps the
rest, and the working set is what the cache must hold: the block that is read and the next one.
"cache" would hold all shards that it reads. Memory for batches is counted from the first samples
as the transforms leave them: (prefetch_factor + 2) messages a worker, of several batches if they
are small; what is below half a MiB travels without it.
Of a mixture there are tables of its components: how often the run passes each one, and for each
stage of the schedule the least and the most samples that steps and the batches of ranks hold. The
last step of a stage may reach into the next one. Long stages are counted in part, and a note says
how far. Bytes and shards are those of epoch 0.
With --index, counts and sizes come from that file and no shard is looked at."""

_SAMPLES_TRIED = 4
_SMALL_VALUE = 8  # bytes of a number, or of an object of unknown size


class Found(NamedTuple):
    """The source of the split, and the sizes of shards and batches, before any arithmetic."""

    config: "SplitConfig"
    source: "Source"
    shards: "ShardIndex"
    size_bytes: int | None
    is_remote: bool
    batch_bytes: int | None
    note: str
    remote: RemotePlan | None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = ArgumentParser(
        prog="lightning-shards plan",
        description="Show steps, drops, repeats, bytes and memory of an epoch.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, type=Path, help="a YAML with a section `data`")
    parser.add_argument(
        "--split", default="train", help="train, val, test or predict; or a set: val/NAME"
    )
    parser.add_argument(
        "--world-size", metavar="N,M", help="ranks to compare; default: the config's trainer"
    )
    parser.add_argument(
        "--ranks-per-node", type=int, metavar="N", help="default: the trainer's devices, else 8"
    )
    parser.add_argument("--index", type=Path, metavar="JSON", help="wids JSON of the split")
    parser.add_argument(
        "--rate",
        type=float,
        default=RATE,
        metavar="N",
        help=f"samples/s that a rank trains, for the rates of fetching; default: {RATE:g}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    run_tool("plan", _plan, parser.parse_args(arguments))


def _plan(options: Namespace) -> int:
    from lightning_shards.tools.configured_data import (
        note_unknown_devices,
        open_data,
        trainer_epochs,
        trainer_limit,
        trainer_size,
    )

    require_large_enough(options, ranks_per_node=1)
    if not 0 < options.rate < float("inf"):
        raise ConfigError(f"--rate must be a number of samples/s above 0, got {options.rate:g}")
    configured = open_data(options.config)
    devices, nodes = trainer_size(options.config)
    if devices is None and options.world_size is None:
        note_unknown_devices("plan", options.config, "--world-size")
    ranks_per_node = options.ranks_per_node or devices or 8
    sizes = _world_sizes(options.world_size, (devices or 1) * nodes)
    found = _find(configured, options)
    rows = [_epoch(configured, found, size, ranks_per_node) for size in sizes]
    limits = trainer_epochs(options.config), trainer_limit(options.config)
    document = _document(found, options.split, rows, sizes, *limits)
    print(json.dumps(document) if options.json else _as_text(document, rows))
    return 0


def _document(
    found: Found,
    split: str,
    rows: list[dict[str, Any]],
    sizes: Sequence[int],
    epochs: int | None,
    limit: float | None,
) -> dict[str, Any]:
    """The facts about the split, the trainer's limits and the epochs at all world sizes."""
    source, description = found.source, found.source.describe()
    network = None if found.remote is None else found.remote.document()
    plans = list(map(source.epochs.plan, sizes))
    return {
        "split": split,
        "sampling": description.sampling,
        "reader": description.reader,
        "shards": found.shards.num_shards,
        "samples": source.epochs.samples,
        "kept": None if found.shards.kept is None else found.shards.kept.samples,
        "held": found.shards.samples,
        "bytes": found.size_bytes,
        "is_remote": found.is_remote,
        "batch_size": source.epochs.batch_size,
        "batch_bytes": found.batch_bytes,
        "remainder": source.epochs.remainder,
        "note": found.note,
        "limit_train_batches": limit if split == "train" else None,
        "network": network,
        "mixture": mixture_document(description, plans, epochs, limit),
        "epochs": rows,
    }


def _world_sizes(text: str | None, default: int) -> list[int]:
    return [default] if text is None else whole_numbers("--world-size", text, 1)


def _find(configured: "ConfiguredData", options: Namespace) -> Found:
    """The split's source, and the sizes of its shards and batches."""
    from lightning_shards.dataprep.index import index_from_file, shard_bytes
    from lightning_shards.shards.urls import is_local
    from lightning_shards.tools.configured_data import require_split

    config = require_split(configured, options.split)
    if options.index is None:
        source = configured.source(options.split)
        index = source.describe().index
        assert index is not None  # the source of a configuration reads shards
        size_bytes = shard_bytes(index)
    else:
        if config.urls is None:
            raise ConfigError(
                f"--index stands for the shards of one data set, and {options.split!r} is a mix of "
                f"{', '.join(config.mix or {})}; leave --index out"
            )
        index, size_bytes = index_from_file(options.index, _remote_folder(config.urls))
        source = configured.source(options.split, index)
    is_remote = not all(map(is_local, index.urls))
    batch_bytes, note = None, "no shard was looked at, so that memory is not known"
    if options.index is None and not is_remote:
        batch_bytes, note = _batch_bytes(source)
    if size_bytes is None:
        size_bytes = index.size_bytes
    description, workers = source.describe(), max(1, configured.num_workers)
    remote = None
    if is_remote:
        remote = remote_plan(description, size_bytes, config, workers=workers, rate=options.rate)
        size_bytes = size_bytes if remote is None else remote.size_bytes
    return Found(config, source, index, size_bytes, is_remote, batch_bytes, note, remote)


def _remote_folder(urls: str | list[str]) -> str:
    """The folder of the first pattern if it is remote, otherwise the empty string."""
    from lightning_shards.shards.urls import is_local, split_joined, split_url

    first = split_joined(urls if isinstance(urls, str) else urls[0])[0]
    return "" if is_local(first) else split_url(first)[0]


def _batch_bytes(source: "Source") -> tuple[int | None, str]:
    """Bytes of a batch, by some samples as decoded and transformed."""
    from lightning_shards.plan.place import Place

    # one at a time: samples of different shapes have a size, too
    samples = min(_SAMPLES_TRIED, source.epochs.samples)
    first = [source.first_sample(Place(rank, samples)) for rank in range(samples)]
    total = sum(_num_bytes(loaded.batch) for loaded in first)
    return round(total / samples * source.epochs.batch_size), ""


def _num_bytes(values: Any) -> int:
    """Bytes of arrays, tensors and texts in containers of any depth; of anything else, a few."""
    from lightning_shards.samples.loaded_torch import bytes_of, is_tensor

    if isinstance(values, Mapping):
        return sum(map(_num_bytes, cast("Mapping[Any, Any]", values).values()))
    if isinstance(values, list | tuple):
        return sum(map(_num_bytes, cast("Sequence[Any]", values)))
    if isinstance(values, bytes | str):
        return len(values)
    if is_tensor(values):
        return bytes_of(values) or _SMALL_VALUE
    return int(getattr(values, "nbytes", _SMALL_VALUE))


def _epoch(
    configured: "ConfiguredData", found: Found, world_size: int, ranks_per_node: int
) -> dict[str, Any]:
    """One column of the table."""
    description = found.source.describe()
    plan = found.source.epochs.plan(world_size)
    ranks = min(ranks_per_node, world_size)
    workers = _workers(configured, ranks)
    needs = _needs(found, plan, workers)
    unknown = {"bytes_to_fetch": needs.bytes_read if found.is_remote else 0}
    fetched = unknown if found.remote is None else found.remote.row(plan, ranks)
    in_shm = needs.shm_bytes if configured.loader_config.pool == "processes" else 0
    return {
        "world_size": world_size,
        "steps": plan.steps,
        "served": plan.served,
        # With draws with replacement an epoch is nominal and drops nothing.
        "dropped": 0 if description.sampling == "resampled" else plan.dropped,
        "repeated": plan.padded,
        "first_sizes": _sizes(plan, 0),
        "last_sizes": _sizes(plan, plan.steps - 1),
        **asdict(needs),
        "shm_bytes": in_shm,
        "ranks": ranks,
        **fetched,
    }


def _needs(found: Found, plan: "EpochPlan", workers: Workers) -> Footprint:
    """What an epoch asks of one node."""
    description, samples = found.source.describe(), found.shards.samples
    message_bytes = _message_bytes(found.batch_bytes)
    if description.mixture is not None:
        parts = found.config.component_splits().values()
        return footprint_of_mixture(
            description, parts, plan, workers, message_bytes, found.size_bytes
        )
    data = DataShape(
        found.shards.num_shards,
        plan.samples if samples is None else samples,
        found.size_bytes,
        description.is_streamed,
    )
    workers = replace(workers, shuffle_buffer=description.shuffle_buffer)
    return footprint(
        plan, data, workers, description.sampling, message_bytes=message_bytes, run=description.run
    )


def _message_bytes(batch_bytes: int | None) -> int | None:
    """Bytes in shared memory of the batches that a worker process sends in one message."""
    from lightning_shards.workers.messages import BatchBytes, shared_bytes

    return None if batch_bytes is None else shared_bytes(BatchBytes(shared=batch_bytes))


def _workers(configured: "ConfiguredData", ranks: int) -> Workers:
    """The workers of one node with this many ranks, without shuffle buffers."""
    config = configured.loader_config
    per_rank = 0 if config.pool == "inline" else configured.num_workers
    return Workers(ranks, per_rank, config.prefetch_factor)


def _sizes(plan: Any, step: int) -> list[int]:
    """Smallest and largest batch of a step; [] if the epoch has no such step."""
    if plan.steps == 0:
        return []
    sizes = [plan.size(step, 0), plan.size(step, plan.world_size - 1)]
    return [min(sizes), max(sizes)]


def _as_text(document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    size, batch = document["bytes"], document["batch_bytes"]
    held = "in" if document["mixture"] is None else "an epoch from"
    head = (
        f"{document['split']}: {count_of(document['samples'], 'sample')} {held} "
        f"{count_of(document['shards'], 'shard')}, {_size(size)}, {document['sampling']} by the "
        f"{document['reader']} reader, {document['remainder']}; a batch of "
        f"{document['batch_size']:,} is {_size(batch)}"
    )
    cells = [["ranks", *(f"{row['world_size']:,}" for row in rows)]]
    for label, key, show in _ROWS:
        if key in rows[0]:
            cells.append([label, *(show(row[key]) for row in rows)])
    lines = [head, table(cells)]
    if document["kept"] is not None:
        left = f"{document['kept']:,} of {count_of(document['held'], 'sample')}"
        lines.append(f"note: keep and exclude leave {left} of these shards")
    if document["note"]:
        lines.append(f"note: {document['note']}")
    empty = [row["world_size"] for row in rows if not row["steps"]]
    if empty:
        is_nominal = document["mixture"] is not None or document["sampling"] == "resampled"
        longer = ", raise dataset_size" * is_nominal
        lines.append(
            f"note: with {count_of(empty[0], 'rank')} no step is full, and a run will refuse that; "
            f"lower the batch size{longer} or take remainder='pad'"
        )
    if document["limit_train_batches"] not in (None, 1.0):
        lines.append(
            f"note: limit_train_batches={document['limit_train_batches']} ends epochs sooner; the "
            "table is of a whole one"
        )
    lines += _drop_notes(document, rows)
    lines += _shm_notes(rows)
    if document["network"] is not None:
        lines += remote_notes(document["network"], rows)
    return "\n".join([*lines, *mixture_text(document)])


def _drop_notes(document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """A note for each world size at which many samples are dropped; a mixture has notes anyway."""
    from lightning_shards.build.loaders import drop_remark

    remarks = {
        row["world_size"]: drop_remark(row["dropped"], document["samples"])
        for row in rows
        if row["steps"] and document["mixture"] is None
    }
    return [
        f"note: with {count_of(size, 'rank')} it {remark}"
        for size, remark in remarks.items()
        if remark
    ]


def _shm_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A note if this machine's /dev/shm is too small for the batches."""
    most = max((row["shm_bytes"] or 0 for row in rows), default=0)
    if not most or not Path("/dev/shm").is_dir():  # noqa: S108
        return []
    status = os.statvfs("/dev/shm")  # noqa: S108
    free = status.f_bavail * status.f_frsize
    if most <= free:
        return []
    note = (
        f"note: /dev/shm of this machine has {human(free)} free, and batches take {human(most)}; "
        "lower num_workers or prefetch_factor, or make it larger (docker: --shm-size)"
    )
    return [note]


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"  # noqa: PLR2004


def _size(value: float | None) -> str:
    return "unknown" if value is None else human(value)


def _range(values: Sequence[int]) -> str:
    return "-" if not values else " to ".join(f"{value:,}" for value in dict.fromkeys(values))


_ROWS: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("steps per rank", "steps", _count),
    ("samples served", "served", _count),
    ("dropped", "dropped", _count),
    ("repeated, weight 0", "repeated", _count),
    ("batch sizes, first step", "first_sizes", _range),
    ("batch sizes, last step", "last_sizes", _range),
    ("nodes", "nodes", _count),
    ("shards per rank", "shards_per_rank", _count),
    ("shards per worker", "shards_per_worker", _count),
    ("a node: samples", "samples_per_node", _count),
    ("a node: bytes read", "bytes_read", _size),
    ("a node: to fetch", "bytes_to_fetch", _size),
    ("a node: requests", "requests", _count),
    ("a node: requests/s", "requests_per_s", _count),
    ("a node: to fetch/s", "bytes_per_s", _size),
    ("a node: later epochs", "bytes_of_later_epochs", _size),
    ("a node: working set", "working_set_bytes", _size),
    ("a node: shards read", "shards_touched", _count),
    ("a node: cache", "cache_bytes", _size),
    ("a node: /dev/shm", "shm_bytes", _size),
    ("a node: shuffle buffers", "buffer_bytes", _size),
)
"""Of the table: label, key in the JSON, and how the value is shown."""
