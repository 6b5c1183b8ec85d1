"""The tables and notes of `lightning-shards plan` about mixtures."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightning_shards.errors import count_of
from lightning_shards.tools.console import table

_MOST_STAGES: Final = 10


def mixture_text(plan: Mapping[str, Any]) -> list[str]:
    """The tables and notes about a mixture; [] if the plan has none."""
    document = plan["mixture"]
    if document is None:
        return []
    rounds = f"rounds of {count_of(document['round'], 'sample')}"
    if document["unit"] > 1:
        rounds += f", {document['unit']:,} in a row of one component"
    lines = ["", f"mixture in {rounds}", _components_table(document)]
    reached = [stage for stage in document["stages"] if stage["is_reached"]]
    for stage in reached[:_MOST_STAGES]:
        lines += [
            "",
            f"weights from {_begin_text(stage, document)} on",
            *_stage_text(stage, document),
        ]
    if len(reached) > _MOST_STAGES:
        more = count_of(len(reached) - _MOST_STAGES, "more stage")
        lines.append(f"note: {more} in the document of --json")
    late = [stage for stage in document["stages"] if not stage["is_reached"]]
    if late:
        lines.append(
            f"note: the run ends before the weights from {_begin_text(late[0], document)} on hold"
        )
    if plan["network"] is not None:
        lines.append(
            "note: what is fetched is that of epoch 0, summed over the remote components; where it "
            "passes one several times, what the cache keeps is fetched once"
        )
    return [*lines, *_drop_notes(document)]


def _components_table(document: Mapping[str, Any]) -> str:
    epochs = document["max_epochs"]
    run = [] if epochs is None else [f"in {count_of(epochs, 'epoch')}", "passes"]
    rows = [["component", "samples", "shards", *run]]
    for name, component in document["components"].items():
        known, in_run = component["samples"], component["in_run"]
        rows.append([name, _number(known), f"{component['shards']:,}"])
        if run:
            rows[-1] += [f"{in_run:,}", _passes(in_run, known)]
    return table(rows)


def _stage_text(stage: Mapping[str, Any], document: Mapping[str, Any]) -> list[str]:
    """The table of a stage, and how far its least and most go."""
    rows = [["component", "weight", "share", "an epoch", "passes", *_batch_heads(stage)]]
    total = sum(stage["weights"].values())
    for name, weight in stage["weights"].items():
        in_epoch = stage["in_epoch"] and stage["in_epoch"][name]
        known = document["components"][name]["samples"]
        passes = "-" if in_epoch is None else _passes(in_epoch, known)
        cells = [f"{weight:,}", f"{weight / total:.2%}", _number(in_epoch, "-"), passes]
        rows.append([name, *cells, *(_range(counts, name) for counts in _batch_columns(stage))])
    notes = [
        f"note: with {count_of(world['world_size'], 'rank')} the least and the most are those of "
        f"the first {count_of(counted, 'step')} from there on"
        for world in stage["worlds"]
        if (counted := _steps_counted(world))
    ]
    round_units = document["round"] // document["unit"]
    return [table(rows), *_rounding_notes(list(stage["weights"].values()), round_units), *notes]


def _rounding_notes(weights: Sequence[int], round_units: int) -> list[str]:
    from lightning_shards.build.mixture_lines import rounding_text

    rounded = rounding_text(weights, round_units)
    return [f"note: {rounded}"] if rounded else []


def _batch_heads(stage: Mapping[str, Any]) -> list[str]:
    heads: list[str] = []
    for world in stage["worlds"]:
        ranks = count_of(world["world_size"], "rank")
        heads += [f"{ranks}: a step"] + ["a batch"] * (world["world_size"] > 1)
    return heads


def _batch_columns(stage: Mapping[str, Any]) -> list[dict[str, Any] | None]:
    columns: list[dict[str, Any] | None] = []
    for world in stage["worlds"]:
        columns += [world["step"]] + [world["batch"]] * (world["world_size"] > 1)
    return columns


def _steps_counted(world: Mapping[str, Any]) -> int:
    """How many steps the least and the most are of; 0 if they are of all."""
    counts = [each for each in (world["step"], world["batch"]) if each and not each["is_complete"]]
    return min((each["steps_counted"] for each in counts), default=0)


def _drop_notes(document: Mapping[str, Any]) -> list[str]:
    """What each number of ranks drops, and the sizes that drop nothing."""
    notes: list[str] = []
    for world in document["worlds"]:
        if not world["dropped"]:
            continue
        each = ", ".join(f"{name} {n:,}" for name, n in world["dropped_of_components"].items() if n)
        epochs = document["max_epochs"]
        in_run = f", {epochs * world['dropped']:,} in {count_of(epochs, 'epoch')}" if epochs else ""
        limited = f"ends after {count_of(world['steps'], 'step')} and " * world["is_limited"]
        sizes = " or ".join(map(str, world["sizes_without_drop"]))
        remedy = "" if limited else f"; in a new run dataset_size={sizes} drops none"
        notes.append(
            f"note: with {count_of(world['world_size'], 'rank')} an epoch {limited}drops "
            f"{count_of(world['dropped'], 'sample')} (epoch 0: {each}){in_run}, which the passes "
            f"skip{remedy}"
        )
    return notes


def _begin_text(stage: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    if stage["begin"] % document["epoch_samples"] == 0:
        return f"epoch {stage['epoch']:,}"
    return f"sample {stage['begin']:,} of the run, in epoch {stage['epoch']:,},"


def _range(counts: Mapping[str, Any] | None, name: str) -> str:
    if counts is None:
        return "-"
    least, most = counts["least"][name], counts["most"][name]
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _passes(samples: int, known: int | None) -> str:
    from lightning_shards.build.mixture_lines import passes_text

    return passes_text(samples, known) if known else "unknown"


def _number(value: int | None, otherwise: str = "unknown") -> str:
    return otherwise if value is None else f"{value:,}"
