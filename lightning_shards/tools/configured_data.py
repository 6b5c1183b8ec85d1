"""The data of a configuration file as training makes them, without Lightning where that can be."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from lightning_shards.build.found_shards import find_shards
from lightning_shards.build.sources import make_source
from lightning_shards.config.module import DataConfig, data_from_config, read_setting
from lightning_shards.config.splits import SplitName
from lightning_shards.errors import ConfigError
from lightning_shards.readers.source import Source


class TrainerSize(NamedTuple):
    """Numbers of the section `trainer`: devices of a node, nodes, ranks of all; epochs if named."""

    devices: int
    nodes: int
    world_size: int
    epochs: int | None


def open_data(config: Path) -> DataConfig:
    """The data that a file describes; Lightning is loaded if it names a data module of the user's.

    Raises:
        ConfigError: The file cannot be read, or holds settings that cannot work.
        FileNotFoundError: There is no such file.
    """
    sys.path.insert(0, str(Path.cwd()))  # finds transforms of this folder, as `fit` does
    if read_setting(config, "data") is None:
        raise ConfigError("the config has no section `data`, with the options of ShardDataModule")
    data = data_from_config(config)
    if data is not None:
        return data
    from lightning_shards.datamodule import ShardDataModule

    return ShardDataModule.from_config(config).data_config()


def source_of(data: DataConfig, split: SplitName) -> Source:
    """The source of the batches of a split."""
    return make_source(data, split, find_shards(data, split))


def trainer_size(config: Path, option: str, given: object) -> TrainerSize:
    """The numbers of the section `trainer`; a note names this option if it has none for devices.

    Raises:
        ConfigError: The file cannot be read.
    """
    keys = ("devices", "num_nodes", "max_epochs")
    named, nodes, epochs = (read_setting(config, f"trainer.{key}") for key in keys)
    devices = named
    if isinstance(named, Sequence) and not isinstance(named, str):
        devices = len(cast("Sequence[object]", named))
    if _positive(devices) is None and given is None:
        said = f"the trainer's devices ({named!r}) are no number, and are taken to be 1"
        print(f"note: {said}; give {option}", file=sys.stderr)
    ranks, nodes = _positive(devices) or 1, _positive(nodes) or 1
    return TrainerSize(ranks, nodes, ranks * nodes, _positive(epochs))


def _positive(count: object) -> int | None:
    return count if type(count) is int and count > 0 else None
