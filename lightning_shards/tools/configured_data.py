"""The data of a configuration file as training makes them, without Lightning where that can be."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from lightning_shards.build.sources import find_shards, make_source
from lightning_shards.config.files import data_from_config, read_setting
from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.module import DataConfig
from lightning_shards.config.sets import SplitName
from lightning_shards.config.splits import SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.readers.source import Source
from lightning_shards.shards.index import ShardIndex


class ConfiguredData(Protocol):
    """The settings of the splits, and their sources; a `ShardDataModule` is one."""

    @property
    def splits(self) -> Mapping[SplitName, SplitConfig | None]:
        """The settings of each split; None: there is no such split."""
        ...

    @property
    def loader_config(self) -> LoaderConfig:
        """How batches are made."""
        ...

    @property
    def num_workers(self) -> int:
        """Workers of each rank."""
        ...

    def source(self, split: SplitName, index: ShardIndex | None = None) -> Source:
        """The source of the batches of a split, from the shards of `index` or from its own."""
        ...


def require_split(data: ConfiguredData, name: SplitName) -> SplitConfig:
    """The settings of the split or the evaluation set that a command names.

    Raises:
        ConfigError: There is no such split.
    """
    config = data.splits.get(name)
    if config is None:
        given = [split for split, each in data.splits.items() if each]
        raise ConfigError(f"the config has no split {name!r}; name one of {given} by --split")
    return config


class _PlainData:
    """The data of settings that no class of the user's changes."""

    def __init__(self, data: DataConfig) -> None:
        self._data = data
        self.splits, self.loader_config = data.splits, data.loader
        self.num_workers = data.num_workers

    def source(self, split: SplitName, index: ShardIndex | None = None) -> Source:
        shards = find_shards(self._data, split) if index is None else index
        return make_source(self._data, split, shards)


def trainer_size(config: Path) -> tuple[int | None, int]:
    """Devices of a node and number of nodes by the section `trainer`; None where it says no number.

    Devices are counted as Lightning counts them: `4`, `"4"`, `[0, 1]` and `"0,1"` are numbers,
    `auto` and `-1` are not.

    Raises:
        ConfigError: The file cannot be read.
    """
    devices, nodes = (read_setting(config, f"trainer.{key}") for key in ("devices", "num_nodes"))
    if isinstance(devices, str) and "," in devices:
        devices = [word for word in devices.split(",") if word.strip()]
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        devices = len(cast("Sequence[object]", devices))
    return _positive(devices), _positive(nodes) or 1


def note_unknown_devices(tool: str, config: Path, option: str) -> None:
    """Say on stderr that one device a node is taken, as the section `trainer` says no number."""
    devices = read_setting(config, "trainer.devices")
    print(
        f"lightning-shards {tool}: note: the trainer's devices ({devices!r}) are no number, and "
        f"are taken to be 1; give {option}",
        file=sys.stderr,
    )


def trainer_epochs(config: Path) -> int | None:
    """Epochs of a run by the section `trainer`; None where it says no number.

    Raises:
        ConfigError: The file cannot be read.
    """
    return _positive(read_setting(config, "trainer.max_epochs"))


def trainer_limit(config: Path) -> float | None:
    """The `limit_train_batches` of the section `trainer`; None where it says no number.

    Raises:
        ConfigError: The file cannot be read.
    """
    limit = read_setting(config, "trainer.limit_train_batches")
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        return None
    return limit


def _positive(count: object) -> int | None:
    if isinstance(count, str) and count.strip().isdecimal():
        count = int(count)
    return count if type(count) is int and count > 0 else None


def open_data(config: Path) -> ConfiguredData:
    """The data that a file describes; Lightning is loaded if it names a data module of the user's.

    Raises:
        ConfigError: The file cannot be read, or holds settings that cannot work.
        FileNotFoundError: There is no such file.
    """
    sys.path.insert(0, str(Path.cwd()))  # finds transforms of this folder, as `fit` does
    data = data_from_config(config)
    if data is not None:
        return _PlainData(data)
    from lightning_shards.datamodule import ShardDataModule

    return ShardDataModule.from_config(config)
