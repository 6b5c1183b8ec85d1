"""The settings of a data module, any of which may be changed until its loaders are made again."""

from contextlib import suppress
from typing import Any, Literal, cast

import lightning.pytorch as pl

from lightning_shards.combined import change_parts
from lightning_shards.config.module import DataConfig
from lightning_shards.config.sets import SplitName, as_settings, missing_split
from lightning_shards.config.splits import SplitConfig
from lightning_shards.errors import ConfigError, ShardError
from lightning_shards.setting_checks import require_at_least
from lightning_shards.shards.filters.sample_filter import sample_filter
from lightning_shards.trainer_stages import STAGE_SPLITS, split_read_by, splits_of, trainer_stage


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
        read = splits_of(self.splits, STAGE_SPLITS[trainer_stage(self.trainer) or "fit"][:1])
        given = [(name, config.batch_size) for name in read if (config := self.splits[name])]
        if given and all(size for _, size in given):  # Tuner.scale_batch_size tries
            name, size = given[0]
            raise ConfigError(
                f"batch_size={batch_size} would change nothing: {name!r} has a batch_size of its "
                f"own, {size}; leave that out of its SplitConfig"
            )
        self._batch_size = batch_size

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Apply `device_transforms`, then the LightningModule's own hook, which this one hides."""
        assert self.trainer is not None  # only a trainer calls hooks
        if self.device_transforms and self.trainer.state.stage is not None:  # else an export
            read = splits_of(self.splits, [split_read_by(self.trainer)])
            batch = change_parts(self.trainer, batch, dataloader_idx, read, self._transformed)
        return self.trainer.lightning_module.on_after_batch_transfer(batch, dataloader_idx)

    def _transformed(self, batch: Any, split: SplitName | None) -> Any:
        """A batch of a split on the device, after `device_transforms`."""
        config = self.splits.get(split) if split is not None else None
        fields = config.batch_fields(self.fields) if config else list(self.fields)
        fields += config.batch_joins if config else ()
        is_collated = ((config and config.collate_fn) or self.collate_fn) is not None
        for name, transform in self.device_transforms.items():
            if isinstance(batch, dict) and name in batch:
                batch[name] = transform(batch[name])
            elif name in fields and is_collated:
                raise ConfigError(
                    f"device_transforms names {name!r}, and the batch that collate_fn made has no "
                    "such entry; name an entry of the dict that it returns"
                )
            elif name in fields and isinstance(batch, dict):
                raise ConfigError(
                    f"device_transforms names {name!r}, and the batch has no such entry: a sample "
                    "transform or a hook took it out; keep it, or leave it out of "
                    "device_transforms"
                )
            elif name in fields and not isinstance(batch, list | tuple):
                kind = type(cast("object", batch)).__name__
                raise ConfigError(
                    f"device_transforms names {name!r}, and the batch is no dict or tuple, but a "
                    f"{kind}, which a hook has made of it; leave device_transforms out, or the hook"
                )
            elif name in fields:
                number = fields.index(name)
                batch = (*batch[:number], transform(batch[number]), *batch[number + 1 :])
        return cast("Any", batch)

    def _config(self, split: SplitName) -> SplitConfig:
        """The settings of a split, with the defaults filled in."""
        return self._data_config().split(self._named(split))

    def _named(self, split: object) -> SplitName:
        """The name of a split, which is a text: what a user gives may not be.

        Raises:
            ConfigError: It is none.
        """
        if not isinstance(split, str):
            raise ConfigError(missing_split(split, self.splits))
        return split

    def _index_settings(self, split: SplitName) -> tuple[object, ...]:
        """What the index of a split is found by, but for the contents of lists.

        The batch size is not among them, because the tuner changes it.
        """
        given = (self.splits.get(split), self.loader_config, self.allow_unsafe)
        return (*given, dict(self.fields), dict(self.decode), dict(self._classes))

    def _digests_of_lists(self, split: SplitName) -> list[str]:
        """Of the lists that the filters of a split name, as they are now."""
        config = self.splits.get(split)
        if config is None:
            return []
        parts = config.component_splits().values() or [config]
        filters = [sample_filter(part.keep, part.exclude) for part in parts]
        with suppress(ShardError):  # who applies the filter tells of a list that cannot be read
            return [each.digest_of_lists() for each in filters if each is not None]
        return []

    def _data_config(self) -> DataConfig:
        """The settings of this module as they are now: any of them may have been changed."""
        return DataConfig(
            **as_settings(self.splits),
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


def settings_differ(before: object, now: object) -> bool:
    """Whether settings are no longer the same, or cannot be compared.

    Arrays and tensors in them have no single answer to `!=`.
    """
    try:
        return bool(before != now)
    except Exception:  # noqa: BLE001 whatever their own `__eq__` raises
        return True
