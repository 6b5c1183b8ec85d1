"""The part of `lightning-shards plan` about mixtures: what batches, epochs and a node hold."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lightning_shards.plan.footprint import DataShape, Footprint, Workers, footprint
from lightning_shards.plan.mixtures.composition import (
    BatchCounts,
    WeightStage,
    count_batches,
    left_out_of_epoch,
    samples_of_epoch,
    sizes_without_drop,
    stages_of,
)
from lightning_shards.plan.mixtures.schedule import RUN_END
from lightning_shards.plan.mixtures.slots import MixtureSlots
from lightning_shards.plan.schedule import limited_steps

if TYPE_CHECKING:
    from lightning_shards.config.splits import SplitConfig
    from lightning_shards.plan.epoch import EpochPlan
    from lightning_shards.readers.source import SourceDescription
    from lightning_shards.shards.index import ShardIndex

_SAMPLES_COUNTED: Final = 2**21
"""Samples that are looked up for one number of ranks, which takes about half a second."""


def mixture_document(
    description: "SourceDescription",
    plans: "Sequence[EpochPlan]",
    epochs: int | None,
    limit: float | None = None,
) -> dict[str, Any] | None:
    """What batches, epochs and the run hold of each component; None if there is no mixture.

    Args:
        description: The source of the split.
        plans: An epoch for each number of ranks.
        epochs: Epochs of the run; None: it is unknown where it ends.
        limit: The `limit_train_batches` of the trainer; None: there is no limit.
    """
    if description.mixture is None or description.index is None:
        return None
    slots = description.mixture.slots
    if epochs is not None and epochs * slots.epoch_samples > RUN_END:
        epochs = None
    in_run = None if epochs is None else slots.before(epochs * slots.epoch_samples).tolist()
    parts = zip(slots.names, description.index.components, strict=True)
    components = {
        name: {
            "samples": index.known_samples,
            "shards": index.num_shards,
            "in_run": None if in_run is None else in_run[number],
        }
        for number, (name, index) in enumerate(parts)
    }
    return {
        "round": slots.schedule.round_samples,
        "unit": slots.schedule.unit,
        "epoch_samples": slots.epoch_samples,
        "max_epochs": epochs,
        "components": components,
        "stages": _stages(slots, plans, epochs, limit),
        "worlds": [_world(slots, plan, limited_steps(limit, plan.steps)) for plan in plans],
    }


def _stages(
    slots: MixtureSlots, plans: "Sequence[EpochPlan]", epochs: int | None, limit: float | None
) -> list[dict[str, Any]]:
    size = slots.epoch_samples
    run_end = RUN_END - size if epochs is None else epochs * size
    stages = stages_of(slots)
    most_samples = _SAMPLES_COUNTED // sum(stage.begin < run_end for stage in stages)
    documents: list[dict[str, Any]] = []
    for stage in stages:
        is_reached = stage.begin < run_end
        end = stage.end if epochs is None else min(stage.end or run_end, run_end)
        epoch = -(-stage.begin // size)  # the first one that begins in it
        is_whole = is_reached and (end is None or (epoch + 1) * size <= end)
        part = WeightStage(stage.begin, end, stage.weights)
        in_epoch = samples_of_epoch(slots, epoch).tolist() if is_whole else None
        documents.append(
            {
                "begin": stage.begin,
                "epoch": stage.begin // size,
                "is_reached": is_reached,
                "weights": dict(zip(slots.names, stage.weights, strict=True)),
                "in_epoch": in_epoch and dict(zip(slots.names, in_epoch, strict=True)),
                "worlds": [
                    _batches(slots, plan, part, most_samples, limited_steps(limit, plan.steps))
                    for plan in plans
                    if is_reached
                ],
            }
        )
    return documents


def _batches(
    slots: MixtureSlots, plan: "EpochPlan", stage: WeightStage, most_samples: int, steps: int
) -> dict[str, Any]:
    in_step = count_batches(slots, plan, stage, most_samples, by_rank=False, steps=steps)
    in_batch = in_step
    if plan.world_size > 1:
        in_batch = count_batches(slots, plan, stage, most_samples, by_rank=True, steps=steps)
    return {
        "world_size": plan.world_size,
        "step": _counts(slots, in_step),
        "batch": _counts(slots, in_batch),
    }


def _counts(slots: MixtureSlots, counts: BatchCounts | None) -> dict[str, Any] | None:
    if counts is None:
        return None
    return {
        "least": dict(zip(slots.names, counts.least, strict=True)),
        "most": dict(zip(slots.names, counts.most, strict=True)),
        "steps_counted": counts.steps,
        "is_complete": counts.is_complete,
    }


def _world(slots: MixtureSlots, plan: "EpochPlan", steps: int) -> dict[str, Any]:
    dropped = left_out_of_epoch(slots, plan, 0, steps).tolist()
    return {
        "world_size": plan.world_size,
        "steps": steps,
        "is_limited": steps < plan.steps,
        "dropped": sum(dropped),
        "dropped_of_components": dict(zip(slots.names, dropped, strict=True)),
        "sizes_without_drop": list(sizes_without_drop(slots, plan)),
    }


def footprint_of_mixture(
    description: "SourceDescription",
    parts: "Iterable[SplitConfig]",
    plan: "EpochPlan",
    workers: Workers,
    message_bytes: int | None,
    size_bytes: int | None,
) -> Footprint:
    """What epoch 0 asks of one node: the sum of what its components ask.

    Args:
        description: The source of the split.
        parts: The settings of the components as those of splits.
        plan: The epoch.
        workers: The workers of one node, without their shuffle buffers.
        message_bytes: Bytes of the batches that a worker sends in one message.
        size_bytes: Bytes of all shards. Where those of a component are not known by themselves, all
            samples count as equally large.
    """
    assert description.mixture is not None  # the callers have a mixture
    assert description.index is not None
    in_epoch = samples_of_epoch(description.mixture.slots, 0).tolist()
    sample_bytes = None
    if size_bytes is not None and description.index.samples:
        sample_bytes = size_bytes / description.index.samples
    needs = [
        footprint(
            plan,
            _shape(index, samples, sample_bytes, is_streamed=description.is_streamed),
            replace(workers, shuffle_buffer=part.shuffle_buffer if description.is_streamed else 0),
            part.sampling or "resampled",
            message_bytes=message_bytes,
            run=part.shuffle_run,
            part=samples / plan.samples,
        )
        for samples, part, index in zip(in_epoch, parts, description.index.components, strict=True)
    ]
    return _sum(needs)


def _shape(
    index: "ShardIndex", in_epoch: int, sample_bytes: float | None, *, is_streamed: bool
) -> DataShape:
    """A component; one whose samples are unknown counts as passed once an epoch."""
    from lightning_shards.dataprep.index import shard_bytes

    samples = in_epoch if index.samples is None else index.samples
    size_bytes = index.size_bytes or shard_bytes(index)
    if size_bytes is None and sample_bytes is not None:
        size_bytes = round(sample_bytes * samples)
    return DataShape(index.num_shards, samples, size_bytes, is_streamed)


def _sum(needs: Sequence[Footprint]) -> Footprint:
    """That of all components; nodes and batches are those of any one."""

    def total(name: str) -> Any:
        values = [getattr(each, name) for each in needs]
        return None if None in values else sum(values)

    return Footprint(
        nodes=needs[0].nodes,
        shards_per_rank=total("shards_per_rank"),
        shards_per_worker=total("shards_per_worker"),
        samples_per_node=total("samples_per_node"),
        bytes_read=total("bytes_read"),
        shards_touched=total("shards_touched"),
        cache_bytes=total("cache_bytes"),
        shm_bytes=needs[0].shm_bytes,
        buffer_bytes=total("buffer_bytes"),
    )
