"""The settings of a data module, any of which may be changed until its loaders are made again."""

from typing import Literal

import lightning.pytorch as pl

from lightning_shards.config.checks import require_at_least
from lightning_shards.config.module import DataConfig
from lightning_shards.config.splits import Split, SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.stages import STAGE_SPLITS, trainer_stage


class ModuleSettings(pl.LightningDataModule):
    """The base of `ShardDataModule`: what that was given, as attributes.

    Args:
        data: The settings, checked.
    """

    def __init__(self, data: DataConfig) -> None:
        super().__init__()
        self.splits = data.splits
        self.fields, self.decode, self._classes = data.fields, data.decode or {}, data.classes or {}
        self.defaults, self.transforms = data.defaults or {}, data.transforms or {}
        self.sample_transforms = data.sample_transforms or []
        self.collate_fn, self.batch_keys = data.collate_fn, data.batch_keys
        self.device_transforms = data.device_transforms or {}
        self._batch_size, self.num_workers, self.seed = data.batch_size, data.num_workers, data.seed
        self.batch_format: Literal["dict", "tuple"] = data.batch_format
        self.loader_config = data.loader
        self.allow_unsafe = frozenset(data.allow_unsafe or ())

    @property
    def batch_size(self) -> int:
        """Samples per rank and step; change it on all ranks, before the next call for a loader."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        require_at_least("batch_size", batch_size, 1)
        name = STAGE_SPLITS[trainer_stage(self.trainer) or "fit"][0]
        split = self.splits[name]
        if split is not None and split.batch_size is not None:  # Tuner.scale_batch_size tries
            raise ConfigError(
                f"batch_size={batch_size} would change nothing: {name!r} has a batch_size of its "
                f"own, {split.batch_size}; leave that out of its SplitConfig"
            )
        self._batch_size = batch_size

    def _config(self, split: Split) -> SplitConfig:
        """The settings of a split, with the defaults filled in."""
        return self._data_config().split(split)

    def _data_config(self) -> DataConfig:
        """The settings of this module as they are now: any of them may have been changed."""
        return DataConfig(
            **self.splits,
            fields=self.fields,
            defaults=self.defaults,
            decode=self.decode,
            classes=self._classes,
            transforms=self.transforms,
            sample_transforms=self.sample_transforms,
            collate_fn=self.collate_fn,
            batch_keys=self.batch_keys,
            device_transforms=self.device_transforms,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            seed=self.seed,
            batch_format=self.batch_format,
            loader=self.loader_config,
            allow_unsafe=sorted(self.allow_unsafe),
        )
