"""The settings of all splits together, as a data module and the tools take them."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

from lightning_shards.config.checks import require_at_least, require_choice
from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.parsing import (
    load_callable,
    load_callable_list,
    load_callables,
    load_decoders,
)
from lightning_shards.config.splits import Split, SplitConfig, split_configs
from lightning_shards.errors import ConfigError
from lightning_shards.samples.class_labels import with_given_classes
from lightning_shards.samples.collate import RESERVED_KEYS
from lightning_shards.samples.collate_fn import Collation
from lightning_shards.samples.decoding.decoders import UNSAFE_DECODERS
from lightning_shards.samples.fields import Field, make_fields


@dataclass(frozen=True)
class DataConfig:
    """The settings of all splits, checked: the arguments of `ShardDataModule`, which explains them.

    What Lightning does with a split is all that it lacks, so that tools need no Lightning.
    """

    train: SplitConfig | None = None
    val: SplitConfig | None = None
    test: SplitConfig | None = None
    predict: SplitConfig | None = None
    _: KW_ONLY
    fields: dict[str, str]
    defaults: dict[str, Any] | None = None
    decode: dict[str, Any] | None = None
    classes: dict[str, list[str]] | None = None
    transforms: dict[str, Any] | None = None
    sample_transforms: list[Any] | None = None
    collate_fn: Any = None
    batch_keys: list[str] | None = None
    device_transforms: dict[str, Any] | None = None
    batch_size: int = 32
    num_workers: int = 2
    seed: int = 0
    batch_format: Literal["dict", "tuple"] = "dict"
    loader: LoaderConfig = LoaderConfig()  # noqa: RUF009 frozen
    allow_unsafe: list[str] | None = None

    def __post_init__(self) -> None:
        """Load splits and callables by what names them, and refuse settings that cannot work.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        for name, split in split_configs(self.splits).items():
            object.__setattr__(self, name, split)
        for name, kind in (("transforms", "transform"), ("device_transforms", "device transform")):
            loaded = load_callables(f"the {kind} of", getattr(self, name) or {})
            object.__setattr__(self, name, loaded)
        sample_transforms = load_callable_list("sample_transforms", self.sample_transforms or [])
        object.__setattr__(self, "sample_transforms", sample_transforms)
        object.__setattr__(self, "decode", load_decoders(self.decode or {}))
        if self.collate_fn is not None:
            object.__setattr__(self, "collate_fn", load_callable("collate_fn", self.collate_fn))
        require_at_least("batch_size", self.batch_size, 1)
        require_at_least("num_workers", self.num_workers, 0)
        require_at_least("seed", self.seed, 0)
        require_choice("batch_format", self.batch_format, ("dict", "tuple"))
        for name in self.allow_unsafe or ():
            require_choice("allow_unsafe", name, ("pipe", *sorted(UNSAFE_DECODERS)))
        for name, split in self.splits.items():
            if split is not None:
                self.fields_of(name)
                self.collation_of(name)

    @property
    def splits(self) -> dict[Split, SplitConfig | None]:
        """The settings of each split as they were given; None: there is no such split."""
        return {"train": self.train, "val": self.val, "test": self.test, "predict": self.predict}

    def split(self, name: Split) -> SplitConfig:
        """The settings of a split, where each missing one is that of all splits or a default.

        Raises:
            ConfigError: There is no such split.
        """
        config = self.splits.get(name)
        if config is None:
            given = [split for split, each in self.splits.items() if each]
            raise ConfigError(
                f"there is no {name!r} split; this module was given {given}: add "
                f"{name}=SplitConfig(urls=...)"
            )
        is_train = name == "train"
        return replace(
            config,
            sampling=config.sampling or ("resampled" if is_train else "sequential"),
            remainder=config.remainder or ("drop" if is_train else "balanced"),
            batch_size=config.batch_size or self.batch_size,
            fields=self.fields if config.fields is None else config.fields,
            defaults=self.defaults or {} if config.defaults is None else config.defaults,
            decode=self.decode or {} if config.decode is None else config.decode,
            classes=self.classes or {} if config.classes is None else config.classes,
            transforms=self.transforms if config.transforms is None else config.transforms,
            sample_transforms=self.sample_transforms or []
            if config.sample_transforms is None
            else config.sample_transforms,
            collate_fn=self.collate_fn if config.collate_fn is None else config.collate_fn,
            batch_keys=self.batch_keys if config.batch_keys is None else config.batch_keys,
        )

    def fields_of(self, split: Split) -> tuple[Field, ...]:
        """The fields of a split, as far as they are known without its shards.

        Raises:
            ConfigError: These fields cannot be taken from any shard.
        """
        config = self.split(split)
        fields, transforms = config.fields or {}, config.transforms or {}
        decode = config.decode or {}
        unknown = sorted(transforms.keys() - fields.keys())
        if unknown and not (config.stages or config.sample_transforms):  # these may add fields
            raise ConfigError(
                f"transforms names {unknown}, and the fields are {sorted(fields)}; name a field, "
                "or add one to fields"
            )
        unsafe = frozenset(self.allow_unsafe or ())
        made = make_fields(fields, decode, unsafe, transforms, config.defaults)
        return with_given_classes(made, config.classes or {})

    def collation_of(self, split: Split) -> Collation:
        """The `collate_fn` of a split, and the reserved entries of its batches.

        Raises:
            ConfigError: They do not go with the other settings.
        """
        config = self.split(split)
        if config.collate_fn is not None and self.batch_format == "tuple":
            raise ConfigError(
                f"collate_fn of {split!r} makes whole batches, and batch_format='tuple' asks for "
                "tuples of fields; leave batch_format out, and let the collate_fn return a tuple"
            )
        return Collation(config.collate_fn, self._reserved_of(split, config))

    def _reserved_of(self, split: Split, config: SplitConfig) -> tuple[str, ...]:
        if config.batch_keys is None:
            return RESERVED_KEYS
        if self.batch_format == "tuple":
            raise ConfigError(
                f"batch_keys={config.batch_keys} of {split!r} has no effect with "
                "batch_format='tuple', whose batches have the fields alone; leave it out"
            )
        for name in config.batch_keys:
            require_choice("batch_keys", name, RESERVED_KEYS)
        fills = {"remainder": config.remainder, "on_bad_sample": config.on_bad_sample}
        for name, value in fills.items():
            if value in {"pad", "substitute"} and "__weight__" not in config.batch_keys:
                raise ConfigError(
                    f"{name}={value!r} of {split!r} says by `__weight__` which samples only fill a "
                    f"place, and batch_keys={config.batch_keys} leaves it out; name '__weight__' "
                    "in batch_keys, and take it out of the batch before the model"
                )
        return tuple(config.batch_keys)
