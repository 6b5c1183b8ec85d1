"""`lightning-shards bench`: measures transforms, loader and training step, and who is the limit."""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_shards.errors import ConfigError
from lightning_shards.system.process import num_cpus
from lightning_shards.tools.console import at_least, config_parser, report, run_tool

if TYPE_CHECKING:
    from lightning_shards.cli import ShardCLI

_EPILOG: Final = """\
Of one rank it measures, for --seconds each after a warm-up, in samples per second:
  transforms       decoding and transforms alone, in one thread
  loader           the loader alone, with each number of workers (of pool: ray from 1 on)
  training step    a real fit on one batch kept in memory
Then it says which side is the limit, and how many workers are enough.

The fit has neither validation, checkpoints, loggers, profiler nor callbacks, and its root folder is
a temporary one. Options of `fit` are taken as well:

  lightning-shards bench --config config.yaml --num-workers 0 4 8 --trainer.precision=bf16-mixed"""

_OF_A_STEP: Final = (
    "accelerator", "precision", "plugins", "accumulate_grad_batches", "gradient_clip_val",
    "gradient_clip_algorithm", "deterministic", "benchmark",
)  # fmt: skip
"""Options of the trainer that a training step depends on; others are left out."""

_FORCED: Final = {
    "devices": 1, "max_epochs": 1, "limit_val_batches": 0, "logger": False,
    "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
"""Not `barebones`: that leaves out `self.log`, which takes its time in a step."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; options that are not its own are those of `fit`."""
    what = "Measure the transforms, the loader, and the training step of a configuration."
    parser = config_parser("bench", what, _EPILOG, required=True, action="append")
    add = parser.add_argument
    number, workers = at_least(0), "default: 0 1 2 4 ... to all cores"
    add("--num-workers", type=number, nargs="+", metavar="N", help=workers)
    seconds = "of each measurement; default: 2"
    add("--seconds", type=at_least(0.01), default=2.0, metavar="S", help=seconds)
    options, options.of_fit = parser.parse_known_args(arguments)
    run_tool("bench", _bench, options)


def _bench(options: argparse.Namespace) -> int:
    from lightning_shards.measure import bench

    with (
        tempfile.TemporaryDirectory(prefix="lightning-shards-bench-") as folder,
        redirect_stdout(sys.stderr),  # for what a model prints
        warnings.catch_warnings(action="ignore"),
    ):
        cli = _fit_of(options, folder)
        data, seconds = cli.datamodule, options.seconds
        powers = [1 << bit for bit in range(num_cpus().bit_length())]
        is_ray = data.loader_config.pool == "ray"
        workers = options.num_workers or [0, *powers][is_ray:]
        rates = {  # the most first: a cluster that is started has CPUs for these
            number: bench.measure_loader(data, number, seconds)
            for number in sorted(workers, reverse=True)
        }
        step = bench.measure_step(cli.model, data, cli.trainer, seconds)
    loader = {number: rate for number, (rate, _) in rates.items()}
    enough = bench.enough_workers(loader, step)
    document = {
        "transforms": rates[workers[0]][1],
        "loader": [{"num_workers": number, "samples_per_s": loader[number]} for number in workers],
        "training_step": step,
        "device": str(cli.trainer.strategy.root_device),
        "num_workers": enough,
        "limit": "training step" if loader[enough] >= step else "loader",
    }
    report(document, as_json=options.json)
    return 0


def _fit_of(options: argparse.Namespace, folder: str) -> "ShardCLI":
    """The model, data and trainer that `fit` would run with; models may be of this folder."""
    from jsonargparse import Namespace
    from lightning.pytorch import LightningDataModule

    from lightning_shards.cli import ShardCLI
    from lightning_shards.config.module import read_setting
    from lightning_shards.datamodule import ShardDataModule

    class UnrunCLI(ShardCLI):
        def before_instantiate_classes(self) -> None:
            """Leave loggers, callbacks and limits of the trainer out."""
            kept = {name: self.config.fit.trainer[name] for name in _OF_A_STEP}
            self.config.fit.trainer = Namespace(**kept, **_FORCED, default_root_dir=folder)

        def _run_subcommand(self, subcommand: str) -> None:
            """Do not run it."""

    sys.path.insert(0, str(Path.cwd()))
    names_class = any(read_setting(path, "data.class_path") for path in options.config)
    cli = UnrunCLI(
        None,
        LightningDataModule if names_class else ShardDataModule,
        subclass_mode_data=names_class,
        save_config_callback=None,
        args=["fit", *(f"--config={path}" for path in options.config), *options.of_fit,
              "--ckpt_path=null"],
    )  # fmt: skip
    if not isinstance(cli.datamodule, ShardDataModule):
        raise ConfigError(f"bench measures a ShardDataModule, not {type(cli.datamodule).__name__}")
    return cli
