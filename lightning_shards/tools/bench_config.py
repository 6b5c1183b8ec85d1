"""The subject of `bench`: the fit of a configuration, made but not run, or shards alone."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningCLI

from lightning_shards.cli import ShardArgumentParser, ShardCLI
from lightning_shards.config.files import read_setting
from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.parsing import plain_message
from lightning_shards.config.splits import SplitConfig
from lightning_shards.datamodule import ShardDataModule
from lightning_shards.errors import ConfigError, count_of
from lightning_shards.profiling.measuring import Fit
from lightning_shards.readers.shard_samples import read_shard
from lightning_shards.samples.crops import DecodeRandomResizedCrop
from lightning_shards.samples.decoders import (
    IMAGE_DECODERS,
    UNSAFE_DECODERS,
    Decoding,
    decoding_of,
)
from lightning_shards.samples.sample_transforms import fields_of
from lightning_shards.shards.urls import expand_urls

_ONE_RANK = ("devices=1", "num_nodes=1", "strategy=auto")
_WRITES_NOTHING = (
    "logger=false", "callbacks=null", "enable_checkpointing=false", "profiler=null",
    "enable_progress_bar=false", "enable_model_summary=false", "barebones=false",
)  # fmt: skip
_TRAINS_ON = (
    # max_epochs is not -1, because schedulers need the number of steps
    "max_epochs=1000000", "max_steps=-1", "min_epochs=null", "min_steps=null", "max_time=null",
    "fast_dev_run=false", "overfit_batches=0", "limit_train_batches=1.0", "limit_val_batches=0",
    "num_sanity_val_steps=0", "val_check_interval=1.0", "check_val_every_n_epoch=1",
    "reload_dataloaders_every_n_epochs=0",
)  # fmt: skip
_IMAGES = frozenset(map(Decoding, IMAGE_DECODERS))
_UNSAFE = frozenset(map(Decoding, UNSAFE_DECODERS))
_NOMINAL_SIZE = 1_000_000
"""Samples of a resampled epoch of bare shards, so that they need not be counted."""


class _RefusedError(Exception):
    """The parser's error about settings; a ConfigError would be taken for one about the data."""


class _OneLineParser(ShardArgumentParser):
    """A parser that raises its errors instead of exiting."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise key, rule and value if the error is about the data, otherwise the whole message."""
        plain = message if ex is None else plain_message(ex)
        raise _RefusedError(plain if plain.startswith("data") else message) from ex


class _FitAsConfigured(ShardCLI):
    """A fit that is made and not run, with a trainer that has no callbacks."""

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """A new trainer for each call."""
        try:
            return LightningCLI.instantiate_trainer(self, **kwargs)
        except (MisconfigurationException, ValueError) as error:
            self._parser(self.subcommand).error(f"trainer: {error}")

    def _run_subcommand(self, subcommand: str) -> None:
        """Do not run the subcommand."""


def configured_fit(
    configs: Sequence[Path],
    options: Sequence[str],
    folder: str,
    *,
    model_class: str | None = None,
    data_class: str | None = None,
) -> Fit:
    """The fit that `fit` would run with these files and options; models may be of this folder.

    Args:
        configs: Configuration files of LightningCLI; later ones override earlier ones.
        options: Options of LightningCLI.
        folder: Root folder of the trainer, for files that the model writes.
        model_class: Import path of the model's class, if the configuration does not name it.
        data_class: Import path of the data module's class, if the configuration does not name it.

    Raises:
        ConfigError: It is not a fit of one rank.
    """
    sys.path.insert(0, str(Path.cwd()))
    data = data_class and _load_class(data_class, "--data-class")
    names_class = not data and any(read_setting(path, "data.class_path") for path in configs)
    plain_class = pl.LightningDataModule if names_class else ShardDataModule
    try:
        cli = _FitAsConfigured(
            model_class and _load_class(model_class, "--model-class"),
            data or plain_class,
            subclass_mode_data=names_class,
            save_config_callback=None,
            parser_class=_OneLineParser,
            args=_arguments(configs, options, folder),
        )
    except _RefusedError as error:
        raise ConfigError(str(error)) from error
    _require_one_rank(cli.trainer.world_size)
    device = str(cli.trainer.strategy.root_device)
    return Fit(cli.model, cli.datamodule, lambda c: cli.instantiate_trainer(callbacks=c), device)


def _require_one_rank(world_size: int) -> None:
    if world_size != 1:
        raise ConfigError(
            f"bench measures one rank, not {world_size}; leave out --trainer.devices and "
            "--trainer.num_nodes"
        )


def _arguments(configs: Sequence[Path], options: Sequence[str], folder: str) -> list[str]:
    """The user's options override those for one rank; the overrides of `bench` come last."""
    ours = (*_WRITES_NOTHING, *_TRAINS_ON, f"default_root_dir={folder}")
    return [
        "fit",
        *(f"--config={path}" for path in configs),
        *(f"--trainer.{override}" for override in _ONE_RANK),
        *options,
        *(f"--trainer.{override}" for override in ours),
        "--ckpt_path=null",
    ]


def module_of_shards(options: Namespace) -> ShardDataModule:
    """A data module of the shards that `--urls` names, with the fields of the first sample.

    Raises:
        ShardError: There are no such shards, or no such fields.
    """
    urls = expand_urls(options.urls)
    if options.fields:
        fields = _pairs(options.fields, "--fields")
    else:
        fields = {suffix: suffix for suffix in _first_suffixes(urls)}
    decode = _pairs(options.decode, "--decode")
    transforms: dict[str, Any] = {}
    for name in fields.keys() - decode.keys():
        decodings = set(map(decoding_of, fields[name].split(";")))
        if decodings & _IMAGES:
            decode[name] = "raw"
            if options.image_size:
                transforms[name] = DecodeRandomResizedCrop(size=options.image_size)
        elif None in decodings or decodings & _UNSAFE:
            decode[name] = "raw"
    size = _NOMINAL_SIZE if options.sampling == "resampled" else None
    return ShardDataModule(
        train=SplitConfig(urls, sampling=options.sampling, dataset_size=size),
        fields=fields,
        decode=decode,
        transforms=transforms,
        batch_size=options.batch_size,
        num_workers=0,
        loader=LoaderConfig(cache_dir=options.cache_dir),
    )


def _load_class(path: str, option: str) -> type:
    try:
        loaded = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{option}={path} cannot be imported: {error}") from error
    if not isinstance(loaded, type):
        raise ConfigError(f"{option}={path} is no class")
    return loaded


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise ConfigError(f"{option} takes NAME=VALUE, as in image=jpg;png, got {text!r}")
        pairs[name] = value
    return pairs


def _first_suffixes(urls: Sequence[str]) -> list[str]:
    for sample in _first_samples(urls):
        return fields_of(sample)
    raise ConfigError(f"--urls names {count_of(len(urls), 'shard')} without a sample")


def _first_samples(urls: Sequence[str]) -> Iterator[dict[str, Any]]:
    for url in urls:
        with closing(read_shard(url, None)) as samples:
            yield from samples
