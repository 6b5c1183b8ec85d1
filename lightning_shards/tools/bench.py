"""`lightning-shards bench`: measures loader, trainer and both, and names the setting to take."""

import json
import logging
import platform
import sys
import tempfile
import warnings
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lightning_shards.errors import ConfigError, WorkerError
from lightning_shards.profiling.plot import require_plot
from lightning_shards.shards.progress_line import progress_bar
from lightning_shards.system.cpus import num_cpus
from lightning_shards.tools.bench_report import (
    Runs,
    as_document,
    as_text,
    hopeful,
    save_bench_plot,
)
from lightning_shards.tools.console import (
    require_large_enough,
    require_seconds,
    run_tool,
    whole_numbers,
)

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from lightning_shards.profiling.measuring import Fit, Measurement, OneBatch

_EPILOG: Final = """\
Three things are measured, in turn for each setting of the workers, and that several times over:
  loader alone   batches are made and dropped
  trainer alone  a real fit, on one batch kept in memory
  both           the real fit
of one rank, for --seconds each, after a warm-up; rates are samples per second: the median, and the
least and most. A star marks the setting of the configuration. Stages are shares of the workers'
time, loader alone. The cheapest setting within 5 % of the best is recommended; one that is less
than half as fast as the best in the first round is not measured again.

The fit has neither validation, checkpoints, loggers, profiler nor callbacks (one that slows the
training is not seen), and its root folder is a temporary one. Options of `fit` are taken as well:

  lightning-shards bench --config config.yaml --num-workers 0,2,4,8 --trainer.precision=bf16-mixed

With --urls there is no trainer. Images of bare shards are cut to --image-size as in training.
Exit status: 0 measured, 2 not done."""

_LIGHTNING: Final = ("lightning.pytorch", "lightning.fabric")


class _Subject(NamedTuple):
    """The data and the fit to measure; for bare shards there is no fit."""

    data: "pl.LightningDataModule"
    fit: "Fit | None"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; an error is one line on stderr and exit status 2."""
    parser = _parser()
    options, others = parser.parse_known_args(arguments)
    if options.urls and others:
        parser.error(f"unrecognized arguments with --urls: {' '.join(others)}")
    options.others = others
    run_tool("bench", _bench, options)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lightning-shards bench",
        description="Measure the loader alone, the trainer alone, and both; recommend workers.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--config", type=Path, action="append", help="a YAML of LightningCLI; several"
    )
    what.add_argument(
        "--urls", nargs="+", help="shards alone: paths with braces or wildcards, URLs"
    )
    add = parser.add_argument
    add("--num-workers", metavar="N,M", help="default: 0, 1, 2, 4, ... up to the number of cores")
    add("--pool", default="processes,threads", metavar="P,Q", help="default: processes,threads")
    add("--threads-per-worker", metavar="N,M", help="of processes; default: the configured number")
    add("--seconds", type=float, default=2.0, metavar="S", help="of each measurement; default: 2")
    add("--repeats", type=int, default=3, metavar="N", help="of each measurement; default: 3")
    add("--json", action="store_true", help="print one JSON document")
    add("--plot", metavar="FILE", help="draw the rates: .png, .pdf or .svg (extra `plot`)")
    add("--model-class", metavar="PATH", help="of a CLI that was made for one: my_module.MyModel")
    add("--data-class", metavar="PATH", help="of a CLI that was made for it: my_module.MyData")
    bare = parser.add_argument_group("with --urls")
    add = bare.add_argument
    add("--fields", nargs="+", default=[], metavar="NAME=SUFFIXES", help="default: all of a sample")
    add("--decode", nargs="+", default=[], metavar="NAME=DECODER", help="default: by suffix")
    add("--batch-size", type=int, default=32, metavar="N", help="default: 32")
    add("--image-size", type=int, default=224, metavar="N", help="default: 224; 0: not decoded")
    add("--sampling", default="resampled", choices=("resampled", "shuffled", "sequential"))
    add("--cache-dir", metavar="DIR", help="of counts and member tables")
    return parser


def _bench(options: Namespace) -> int:
    _check(options)
    from lightning_shards.profiling.measuring import take_batch

    with tempfile.TemporaryDirectory(prefix="lightning-shards-bench-") as folder, quiet_lightning():
        subject = _subject(options, folder)
        rows = _settings(options, subject)
        _leave_workers_out(subject.data)
        batch = take_batch(subject.data)  # faults of the data show here
        trainer = _measure(subject, batch, rows, options)
    about = _about(options, subject, batch)
    if options.plot is not None:
        save_bench_plot(options.plot, _heading(about), rows, trainer)
    if options.json:
        print(json.dumps(as_document(about, rows, trainer)))
    else:
        print(as_text(_heading(about), rows, trainer))
    return 0


def _check(options: Namespace) -> None:
    """Refuse options that cannot work, before any slow import."""
    require_seconds(options.seconds)
    require_large_enough(options, repeats=1, batch_size=1, image_size=0)
    _numbers(options.num_workers, "--num-workers", 0)
    _numbers(options.threads_per_worker, "--threads-per-worker", 1)
    pools = options.pool.split(",")
    if not pools or set(pools) - {"processes", "threads"}:
        raise ConfigError(f"--pool must name processes, threads or both, got {options.pool!r}")
    if options.plot is not None:
        require_plot(options.plot)


def _numbers(text: str | None, option: str, least: int) -> list[int]:
    return [] if text is None else whole_numbers(option, text, least)


def _subject(options: Namespace, folder: str) -> _Subject:
    from lightning_shards.tools import bench_config

    if options.urls:
        return _Subject(bench_config.module_of_shards(options), None)
    fit = bench_config.configured_fit(
        options.config,
        options.others,
        folder,
        model_class=options.model_class,
        data_class=options.data_class,
    )
    return _Subject(fit.data, fit)


def _settings(options: Namespace, subject: _Subject) -> list[Runs]:
    """A row for each setting, of which one is the configured setting."""
    from lightning_shards.tools.bench_settings import (
        current_setting,
        list_settings,
    )

    now = current_setting(subject.data)
    settings = list_settings(
        now,
        _numbers(options.num_workers, "--num-workers", 0) or _doubled(num_cpus()),
        options.pool.split(","),
        _numbers(options.threads_per_worker, "--threads-per-worker", 1),
    )
    is_given = subject.fit is not None
    if is_given and now not in settings:
        settings.insert(0, now)
    return [Runs(setting, is_configured=is_given and setting == now) for setting in settings]


def _doubled(most: int) -> list[int]:
    """The numbers 0, 1, 2, 4, ... and `most`.

    >>> _doubled(6)
    [0, 1, 2, 4, 6]
    """
    return [0, *(1 << bit for bit in range(most.bit_length()) if 1 << bit < most), most]


def _leave_workers_out(data: "pl.LightningDataModule") -> None:
    from lightning_shards.datamodule import ShardDataModule
    from lightning_shards.tools.bench_settings import Setting, apply_setting

    if isinstance(data, ShardDataModule):
        apply_setting(data, Setting("inline", 0))


def _measure(
    subject: _Subject, batch: "OneBatch", rows: Sequence[Runs], options: Namespace
) -> "list[Measurement]":
    """Fill the rows, one run of each in turn, and return the runs of the trainer alone."""
    from lightning_shards.profiling import measuring

    span, fit = measuring.Timing.of(options.seconds), subject.fit
    trainer: list[Measurement] = []
    tasks = options.repeats * (len(rows) * (2 if fit else 1) + (1 if fit else 0))
    with progress_bar(tasks) as begin:
        for number in range(options.repeats):
            if fit:
                begin("trainer alone")
                trainer.append(_fitted(partial(measuring.measure_trainer, fit, batch, span)))
            for runs in rows if number == 0 else hopeful(rows):
                begin(f"loader alone, {runs.setting.name}")
                measure = partial(measuring.measure_loader, subject.data, span)
                _add_run(subject.data, runs, runs.loader, measure)
                if fit:
                    begin(f"both, {runs.setting.name}")
                    measure = partial(_fitted, partial(measuring.measure_both, fit, span))
                    _add_run(subject.data, runs, runs.both, measure)
    return trainer


def _add_run(
    data: "pl.LightningDataModule",
    runs: Runs,
    windows: "list[Measurement]",
    measure: "Callable[[], Measurement]",
) -> None:
    """Measure with this setting, or note why it cannot be used."""
    from lightning_shards.datamodule import ShardDataModule
    from lightning_shards.tools.bench_settings import apply_setting

    if runs.refused is not None:
        return
    # A DataLoader refuses its settings by ValueError.
    refusals = (ConfigError, WorkerError) if isinstance(data, ShardDataModule) else (ValueError,)
    try:
        apply_setting(data, runs.setting)
        windows.append(measure())
    except refusals as error:
        runs.refused = " ".join(str(error).split())


def _fitted(measure: "Callable[[], Measurement]") -> "Measurement":
    """Measure a fit; Ctrl-C in it, which Lightning turns into SystemExit, ends the command."""
    try:
        return measure()
    except SystemExit as error:
        raise KeyboardInterrupt from error


def _about(options: Namespace, subject: _Subject, batch: "OneBatch") -> dict[str, Any]:
    names = ("torch", "lightning", "lightning-shards")
    return {
        "config": [str(path) for path in options.config or ()],
        "urls": options.urls or [],
        "batch_size": batch.samples,
        "seconds": options.seconds,
        "repeats": options.repeats,
        "device": subject.fit.device if subject.fit else "cpu",
        "machine": {
            "cores": num_cpus(),
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            **{name: version(name) for name in names},
        },
    }


def _heading(about: dict[str, Any]) -> str:
    what = " ".join(about["config"] or about["urls"])
    cores = about["machine"]["cores"]
    return (
        f"{what}: batches of {about['batch_size']:,}, one rank on {about['device']}, {cores} "
        f"cores, samples/s as median (least to most) of {about['repeats']} x {about['seconds']:g} s"
    )


@contextmanager
def quiet_lightning() -> Generator[None]:
    """Silence Lightning's messages about each fit, and send prints of a model to stderr."""
    import_module("lightning.pytorch")  # the import sets the levels of its loggers
    loggers = [logging.getLogger(name) for name in _LIGHTNING]
    levels = [logger.level for logger in loggers]
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
