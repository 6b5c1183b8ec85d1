"""`lightning-shards plan`: shows an epoch in numbers before it is run."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lightning_shards.shards.urls import is_local
from lightning_shards.tools.console import epoch_parser, report, run_tool

_EPILOG: Final = """\
Of a mixture there is a table of its components, with samples and passes of epoch 0 and of the
run."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    what = "Show the steps, drops, shards and bytes of an epoch."
    run_tool("plan", _plan, epoch_parser("plan", what, _EPILOG).parse_args(arguments))


def _plan(options: Namespace) -> int:
    from lightning_shards.build.mixtures import component_rows
    from lightning_shards.tools.configured_data import open_data, source_of, trainer_size

    source = source_of(open_data(options.config), options.split)
    trainer = trainer_size(options.config, "--world-size", options.world_size)
    description, epochs = source.describe(), source.epochs
    index, plan = description.index, epochs.plan(options.world_size or trainer.world_size)
    plan.require_steps(options.split, is_nominal=description.is_nominal)
    assert index is not None  # the source of a configuration reads shards
    size_bytes = index.size_bytes
    if all(map(is_local, index.urls)):
        size_bytes = sum(Path(url).stat().st_size for url in index.urls)
    document: dict[str, Any] = {
        "split": options.split,
        "shards": index.num_shards,
        "samples": epochs.samples,
        "held": index.samples,
        "kept": None if index.kept is None else index.kept.samples,
        "bytes": size_bytes,
        "batch_sizes": sorted({*plan.sizes(0), *plan.sizes(plan.steps - 1)}),
        "world_size": plan.world_size,
        "steps": plan.steps,
        # With draws with replacement an epoch is nominal and drops nothing.
        "dropped": 0 if description.sampling == "resampled" else plan.dropped,
        "repeated": plan.padded,
        "components": component_rows(description, trainer.epochs) or None,
    }
    report(document, as_json=options.json)
    return 0
