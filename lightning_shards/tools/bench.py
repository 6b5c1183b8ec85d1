"""`lightning-shards bench`: measures transforms, loader and training step, and who is the limit."""

import logging
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_shards.errors import ConfigError
from lightning_shards.system.process import num_cpus
from lightning_shards.tools.console import config_parser, report, run_tool, whole_numbers

if TYPE_CHECKING:
    from lightning_shards.cli import ShardCLI

_EPILOG: Final = """\
Of one rank it measures, for --seconds each after a warm-up, in samples per second:
  transforms       decoding and transforms alone, in one thread
  loader           the loader alone, with each number of workers
  webdataset       webdataset's own pipeline on the same local shards, fields and transforms
  training step    a real fit on one batch kept in memory
Then it says which side is the limit, and how many workers are enough.

The fit has neither validation, checkpoints, loggers, profiler nor callbacks, and its root folder is
a temporary one. Options of `fit` are taken as well:

  lightning-shards bench --config config.yaml --num-workers 0,4,8 --trainer.precision=bf16-mixed"""

_TRAINER: Final = {
    "devices": 1, "num_nodes": 1, "strategy": "auto", "logger": "false", "callbacks": "null",
    "enable_checkpointing": "false", "profiler": "null", "enable_progress_bar": "false",
    "enable_model_summary": "false", "barebones": "false", "fast_dev_run": "false",
    # max_epochs is not -1, because schedulers need the number of steps
    "max_epochs": 1_000_000, "max_steps": -1, "min_epochs": "null", "min_steps": "null",
    "max_time": "null", "overfit_batches": 0, "limit_train_batches": "1.0", "limit_val_batches": 0,
    "num_sanity_val_steps": 0, "reload_dataloaders_every_n_epochs": 0,
    "val_check_interval": "1.0", "check_val_every_n_epoch": 1,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; options that are not its own are those of `fit`."""
    what = "Measure the transforms, the loader, and the training step of a configuration."
    parser = config_parser("bench", what, _EPILOG, required=True, action="append")
    add = parser.add_argument
    add("--num-workers", metavar="N,M", help="default: 0, 1, 2, 4, ... up to the number of cores")
    add("--seconds", type=float, default=2.0, metavar="S", help="of each measurement; default: 2")
    options, options.of_fit = parser.parse_known_args(arguments)
    run_tool("bench", _bench, options)


def _bench(options: Namespace) -> int:
    if not 0 < options.seconds < float("inf"):
        raise ConfigError(f"--seconds must be above 0, got {options.seconds:g}")
    workers = [0, *(1 << bit for bit in range(num_cpus().bit_length()))]
    if options.num_workers is not None:
        workers = whole_numbers("--num-workers", options.num_workers, 0)
    from lightning_shards.measure import bench

    with tempfile.TemporaryDirectory(prefix="lightning-shards-bench-") as folder, _quiet():
        cli = _fit_of(options, folder)
        data, seconds = cli.datamodule, options.seconds
        rates = {number: bench.measure_loader(data, number, seconds) for number in workers}
        step = bench.measure_step(cli.model, data, cli.trainer, seconds)
        advice = bench.advise({number: each.loader for number, each in rates.items()}, step)
        plain = bench.measure_webdataset(data, advice.num_workers, seconds)
    document = {
        "transforms": rates[workers[0]].transforms,
        "loader": [
            {"num_workers": number, "samples_per_s": each.loader} for number, each in rates.items()
        ],
        "webdataset": plain,
        "training_step": step,
        "device": str(cli.trainer.strategy.root_device),
        **advice._asdict(),
    }
    report(document, as_json=options.json)
    return 0


def _fit_of(options: Namespace, folder: str) -> "ShardCLI":
    """The model, data and trainer that `fit` would run with; models may be of this folder."""
    from lightning.pytorch import LightningDataModule

    from lightning_shards.cli import ShardCLI
    from lightning_shards.config.module import read_setting
    from lightning_shards.datamodule import ShardDataModule

    class UnrunCLI(ShardCLI):
        def _run_subcommand(self, subcommand: str) -> None:
            """Do not run it."""

    sys.path.insert(0, str(Path.cwd()))
    names_class = any(read_setting(path, "data.class_path") for path in options.config)
    forced = [f"--trainer.{name}={value}" for name, value in _TRAINER.items()]
    cli = UnrunCLI(
        None,
        LightningDataModule if names_class else ShardDataModule,
        subclass_mode_data=names_class,
        save_config_callback=None,
        args=["fit", *(f"--config={path}" for path in options.config), *options.of_fit, *forced,
              f"--trainer.default_root_dir={folder}", "--ckpt_path=null"],
    )  # fmt: skip
    if not isinstance(cli.datamodule, ShardDataModule):
        raise ConfigError(f"bench measures a ShardDataModule, not {type(cli.datamodule).__name__}")
    return cli


@contextmanager
def _quiet() -> Generator[None]:
    """Leave out warnings and messages about each fit, and send what a model prints to stderr."""
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
