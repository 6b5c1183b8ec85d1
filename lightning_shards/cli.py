"""The command line for training: LightningCLI with our data module and our callbacks."""

import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import lightning.pytorch as pl
from jsonargparse import Namespace, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import BasePredictionWriter, Checkpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_info
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lightning_shards.callbacks.digest import EpochDigest
from lightning_shards.callbacks.predictions import ShardPredictionWriter
from lightning_shards.callbacks.resume import ExactResume
from lightning_shards.callbacks.set_epoch import SetEpoch
from lightning_shards.callbacks.throughput import DataThroughputMonitor
from lightning_shards.config.module import placed_message
from lightning_shards.config.parsing import (
    PARSER_MODE,
    cause_of,
    did_you_mean,
    known_keys,
    load_yaml,
    plain_message,
    refuse_base_60,
    require_sections,
    with_urls,
)
from lightning_shards.config.splits import SET_SETTINGS, SPLITS
from lightning_shards.datamodule import ShardDataModule
from lightning_shards.errors import ShardError, errors_about

_SPLIT_OPTION = re.compile(
    rf"--data\.(?:init_args\.)?(?:{'|'.join(SPLITS)}|(?:{'|'.join(SET_SETTINGS)})\.[\w-]+)"
)

_NOT_URLS = re.compile(
    r"(?:null|~)?|\$\{[^{}]*\}|.*\.(?:ya?ml|json)|\{.*(?::\s|\":).*\}", re.DOTALL
)
"""The whole of a text that stands for a split's settings: an interpolation, their file, a dict."""


class ShardArgumentParser(LightningArgumentParser):
    """A parser whose errors are one line, which names the key, the rule and the value.

    A split may be given by its urls alone, as in ``val: val-*.tar`` and ``--data.val=val-*.tar``.
    """

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with exit status 2, or raise ArgumentError if the parser was made to do so."""
        if ex is not None and self.exit_on_error:
            message = plain_message(ex)
        message += did_you_mean(message, known_keys(self))
        super().error(message, ex)

    def parse_args(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> Any:
        """Parse the command line, on which the urls of a split may stand for the split."""
        named = _with_urls_named(sys.argv[1:] if args is None else list(args))
        return cast("Any", super()).parse_args(named, *others, **options)

    def _load_config_parser_mode(self, content: str, *others: Any, **options: Any) -> Any:
        settings: Any = OmegaConf.to_container(load_yaml(content))
        data = _as_dict(_as_dict(settings).get("data"))
        if data := _as_dict(data.get("init_args", data)):
            _name_urls(data)
            content = OmegaConf.to_yaml(settings)
        return cast("Any", super())._load_config_parser_mode(content, *others, **options)  # noqa: SLF001 it is ours

    def print_usage(self, file: IO[str] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] argparse's own file type is private
        """Print nothing: a page of options would push the line of the error off the screen."""
        if file is not sys.stderr:
            cast("Any", super()).print_usage(file)


class LoggedConfigCallback(SaveConfigCallback):
    """Saves the configuration of a run in the folder of its logger.

    Without a logger all runs have one folder, by default that of the command, where the file may be
    the user's own.
    """

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Save the configuration, if there is a logger."""
        if trainer.loggers:
            super().setup(trainer, pl_module, stage)


class ShardCLI(LightningCLI):
    """`LightningCLI` with `ShardDataModule` and our callbacks.

    It adds `SetEpoch`, `ExactResume`, `EpochDigest` and `DataThroughputMonitor`, each unless the
    configuration has it already, and for ``predict --output FOLDER`` a `ShardPredictionWriter`.

    A misspelt option is an error: options cannot be abbreviated (LightningCLI by itself reads
    ``--data.batch`` as ``--data.batch_size``). omegaconf resolves interpolations like
    ``${trainer.devices}`` in a YAML.

    An error of this package, of a transform or of a stage ends the command with one line and exit
    status 2. With ``--traceback`` it is raised.
    """

    def __init__(
        self,
        model_class: Any = None,
        datamodule_class: Any = ShardDataModule,
        **options: Any,
    ) -> None:
        # of a file, as its settings come to be below the name of a command
        set_parsing_settings(omegaconf_absolute_to_relative_paths=True)
        options.setdefault("parser_class", ShardArgumentParser)
        options.setdefault("save_config_callback", LoggedConfigCallback)
        cast("Any", super()).__init__(model_class, datamodule_class, **options)

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """A parser that takes no abbreviations and resolves interpolations."""
        ours: dict[str, Any] = {"allow_abbrev": False, "parser_mode": PARSER_MODE}
        return super().init_parser(**{**ours, **kwargs})

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add `--traceback` to Lightning's own options."""
        super().add_default_arguments_to_parser(parser)
        cast("Any", parser).add_argument(
            "--traceback",
            action="store_true",
            help="Whether to raise an error of the data with its whole traceback.",
        )

    def _prepare_subcommand_parser(
        self, klass: type, subcommand: str, **kwargs: Any
    ) -> LightningArgumentParser:
        parser: Any = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "predict":
            parser.add_argument(
                "--output", type=str | None, help="The folder to write predictions to, as Parquet."
            )
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Read options and files; an interpolation that cannot be resolved is an option error."""
        with self._errors_in_one_line(parser):
            cast("Any", super()).parse_arguments(parser, args)

    def instantiate_classes(self) -> None:
        """Make model, data and trainer."""
        parser, config = self._parser(self.subcommand), cast("Any", self.config)
        with self._errors_in_one_line(parser):
            require_sections(parser, config.get(self.subcommand or "", config), "trainer", "data")
            super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """The trainer, with those of our callbacks that the configuration lacks."""
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ValueError) as error:
            self._parser(self.subcommand).error(f"trainer: {error}")
        callbacks = cast("list[pl.Callback]", cast("Any", trainer).callbacks)
        kinds = (SetEpoch, ExactResume, EpochDigest, DataThroughputMonitor)
        callbacks += [
            kind() for kind in kinds if not any(isinstance(each, kind) for each in callbacks)
        ]
        folder = self._get(self.config_init, "output")
        with errors_about("output", ShardError):  # behind the digest, which may refuse predictions
            callbacks += [] if folder is None else [ShardPredictionWriter(folder)]
        callbacks.sort(key=lambda each: isinstance(each, Checkpoint))  # which come last
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        except ShardError as error:
            parser = self._parser(subcommand)
            if self._get(self.config, "traceback", default=False) or not parser.exit_on_error:
                raise
            parser.exit(2, f"error: {one_line(error)} (--traceback shows where)\n")

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """The arguments of the trainer's method; predictions are written or kept in memory."""
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand == "predict":
            callbacks = cast("list[object]", cast("Any", self.trainer).callbacks)
            if any(isinstance(callback, ShardPredictionWriter) for callback in callbacks):
                kwargs["return_predictions"] = bool(kwargs.get("return_predictions"))
            elif not any(isinstance(callback, BasePredictionWriter) for callback in callbacks):
                rank_zero_info("predictions are not written; --output FOLDER writes them to files")
        return kwargs

    @contextmanager
    def _errors_in_one_line(self, parser: LightningArgumentParser) -> Generator[None]:
        """Turn errors of settings, whether wrapped by jsonargparse or not, into parser errors."""
        try:
            yield
        except Exception as error:
            if ours := cause_of(error, ShardError):
                parser.error(placed_message(ours, self._data_settings()))
            if cause_of(error, OmegaConfBaseException, YAMLError):
                parser.error(plain_message(error))
            raise

    def _data_settings(self) -> dict[str, Any]:
        data = self._get(self.config, "data") if hasattr(self, "config") else None  # none yet
        settings: dict[str, Any] = data.as_dict() if isinstance(data, Namespace) else {}
        return settings.get("init_args", settings)


def _as_dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _name_urls(data: dict[str, Any]) -> None:
    """Let a split be ``{"urls": ...}`` where it is given by its urls, so that options change it."""
    for name, given in data.items():
        if name in SPLITS:
            data[name] = _with_name(given)
        elif name in SET_SETTINGS and (sets := _as_dict(given)):
            data[name] = {each: _with_name(sets[each]) for each in sets}


def _with_name(split: object) -> object:
    return split if isinstance(split, str) and _NOT_URLS.fullmatch(split) else with_urls(split)


def _with_urls_named(arguments: Sequence[str]) -> list[str]:
    """The command line with ``--data.val.urls=a.tar`` for ``--data.val=a.tar``.

    So the other settings of a split that a file gives stay as they are.
    """
    named: list[str] = []
    for argument, following in pairwise([*arguments, ""]):
        option, equals, value = argument.partition("=")
        value = value if equals else following
        if option.startswith("--data."):
            refuse_base_60(value)
        is_split = _SPLIT_OPTION.fullmatch(option) and not _NOT_URLS.fullmatch(value)
        named.append(argument.replace(option, f"{option}.urls", 1) if is_split else argument)
    return named


def one_line(error: ShardError) -> str:
    """The message and the notes on it."""
    return " ".join("; ".join([str(error), *getattr(error, "__notes__", [])]).split())


def main() -> None:
    """Run `fit`, `validate`, `test` or `predict`; modules of this folder can be named in YAML."""
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    ShardCLI()
