"""The settings of all splits together, as a data module and the tools take them."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, cast

from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.mixtures import (
    MERGED,
    errors_of_component,
    is_key_of,
    require_same_fields_of,
    with_lower_suffixes,
)
from lightning_shards.config.parsing import (
    load_callable,
    load_callable_list,
    load_callables,
    load_decoders,
)
from lightning_shards.config.sets import (
    SET_SETTINGS,
    SplitName,
    missing_split,
    named_splits,
    set_configs,
)
from lightning_shards.config.splits import Split, SplitConfig, split_configs
from lightning_shards.errors import ConfigError
from lightning_shards.readers.joined.joined_fields import make_all_fields
from lightning_shards.samples.collate import RESERVED_KEYS
from lightning_shards.samples.collate_fn import Collation
from lightning_shards.samples.decoders import UNSAFE_DECODERS
from lightning_shards.samples.fields import Field, with_given_classes
from lightning_shards.setting_checks import (
    MOST_SEED,
    require_at_least,
    require_choice,
    require_fields,
    require_list,
    require_mappings,
)
from lightning_shards.shards.joins.settings import join_settings


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
    val_sets: dict[str, SplitConfig] | None = None
    test_sets: dict[str, SplitConfig] | None = None
    predict_sets: dict[str, SplitConfig] | None = None
    fields: dict[str, str]
    defaults: dict[str, Any] | None = None
    decode: dict[str, Any] | None = None
    classes: dict[str, list[str] | dict[str, int]] | None = None
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
        self._require_containers()
        self._load_splits()
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
        require_at_least("seed", self.seed, 0, MOST_SEED)
        require_choice("batch_format", self.batch_format, ("dict", "tuple"))
        for name in self.allow_unsafe or ():
            require_choice("allow_unsafe", name, ("pipe", *sorted(UNSAFE_DECODERS)))
        for name, split in self.splits.items():
            if split is not None:
                self._check_fields(name)
                self.collation_of(name)
        self._require_device_names()

    def _require_containers(self) -> None:
        require_fields(self.fields)
        names = ("defaults", "decode", "classes", "transforms", "device_transforms")
        require_mappings(self, names)
        for name in ("batch_keys", "allow_unsafe"):
            if getattr(self, name) is not None:
                require_list(name, getattr(self, name))
        if cast("object", self.loader) is None:
            object.__setattr__(self, "loader", LoaderConfig())
        if not isinstance(cast("object", self.loader), LoaderConfig):
            raise ConfigError(f"loader must be a LoaderConfig, got {self.loader!r}")

    def _load_splits(self) -> None:
        single = self._single_splits
        for name, split in split_configs(single).items():
            object.__setattr__(self, name, split)
        for setting, kind in SET_SETTINGS.items():
            sets = set_configs(setting, getattr(self, setting), single[kind])
            object.__setattr__(self, setting, sets)

    @property
    def _single_splits(self) -> dict[Split, SplitConfig | None]:
        return {"train": self.train, "val": self.val, "test": self.test, "predict": self.predict}

    @property
    def splits(self) -> dict[SplitName, SplitConfig | None]:
        """The settings of each split and each set as given; None: there is no such split."""
        sets = {setting: getattr(self, setting) for setting in SET_SETTINGS}
        return named_splits(self._single_splits, sets)

    def split(self, name: SplitName) -> SplitConfig:
        """The settings of a split or a set; each missing one is that of all, or a default.

        Raises:
            ConfigError: There is no such split.
        """
        config = self.splits.get(name)
        if config is None:
            raise ConfigError(missing_split(name, self.splits))
        is_train = name == "train"
        return replace(
            config,
            reader="indexed" if config.has_joins and config.reader == "auto" else config.reader,
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

    def fields_of(self, split: SplitName) -> tuple[Field, ...]:
        """The fields of a split, as far as they are known without its shards.

        Raises:
            ConfigError: These fields cannot be taken from any shard.
        """
        return self.fields_from(self.split(split))

    def fields_from(self, config: SplitConfig) -> tuple[Field, ...]:
        """The fields of a split or of a component with these settings, which are complete.

        Raises:
            ConfigError: These fields cannot be taken from any shard.
        """
        fields, transforms = config.fields or {}, config.transforms or {}
        decode, joins = config.decode or {}, join_settings(config.join or {})
        unknown = sorted(transforms.keys() - fields.keys() - {join.name for join in joins})
        if unknown and not (config.stages or config.sample_transforms):  # these may add fields
            raise ConfigError(
                f"transforms names {unknown}, and the fields are {sorted(fields)}; name a field, "
                "or add one to fields"
            )
        unsafe = frozenset(self.allow_unsafe or ())
        defaults = config.defaults or {}
        made = make_all_fields(fields, joins, decode, unsafe, transforms, defaults)
        return with_given_classes(made, config.classes or {})

    def _require_device_names(self) -> None:
        """Refuse device transforms of names that can be in no batch of any split."""
        splits = self.splits.items()
        entries = [self._entries_of(split) for split, config in splits if config is not None]
        known = {name for names in entries for name in names or ()}
        unknown = sorted((self.device_transforms or {}).keys() - known)
        if unknown and entries and None not in entries:
            raise ConfigError(
                f"device_transforms names {unknown}, and batches have {sorted(known)}; name an "
                "entry of theirs"
            )

    def _entries_of(self, split: SplitName) -> list[str] | None:
        """The entries of the batches of a split; None where code of the user's may add some."""
        config = self.split(split)
        parts = list(config.component_splits().values()) or [config]
        names = [name for part in parts for name in (*(part.fields or {}), *(part.join or {}))]
        if self.batch_format == "tuple":
            return names
        if config.collate_fn is not None or any(p.stages or p.sample_transforms for p in parts):
            return None
        return [*names, *self.collation_of(split).reserved]

    def _check_fields(self, split: SplitName) -> None:
        """Refuse fields that cannot be taken from any shard, and a mix that is not trained on."""
        config = self.split(split)
        if config.mix is None:
            self.fields_of(split)
            return
        if split != "train":
            raise ConfigError(
                f"{split} takes no mix, which repeats samples and leaves some out; for each sample "
                "once give the urls of all components, as one list"
            )
        names: dict[str, list[str]] = {}
        parts = config.component_splits()
        for name, component in parts.items():
            with errors_of_component(name):
                fields = self.fields_from(component)
            if not (component.sample_transforms or component.stages):  # these may rename fields
                names[name] = [field.name for field in fields]
        _require_taken(config, parts)
        is_apart = config.unit % (config.batch_size or 1) == 0
        if names:
            may_differ = is_apart and self.batch_format == "dict"
            require_same_fields_of(names, may_differ=may_differ)

    def collation_of(self, split: SplitName) -> Collation:
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

    def _reserved_of(self, split: SplitName, config: SplitConfig) -> tuple[str, ...]:
        if config.batch_keys is None:
            return RESERVED_KEYS if self.batch_format == "dict" else ()
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


def _require_taken(config: SplitConfig, parts: Mapping[str, SplitConfig]) -> None:
    """Refuse misspelt keys of a mix: those that no component takes, nor takes away.

    Keys of the fields of the split or of the module, which other splits may have, are none.
    """
    of_split = config.fields or {}
    for setting in MERGED:
        taken = {
            key
            for part in (*parts.values(), *(config.mix or {}).values())
            for key in with_lower_suffixes(getattr(part, setting) or {})
        }
        given = with_lower_suffixes(getattr(config, setting) or {})
        unknown = sorted(key for key in given if key not in taken and not is_key_of(key, of_split))
        if unknown:
            names = {name for part in (config, *parts.values()) for name in part.fields or {}}
            raise ConfigError(
                f"{setting} names {unknown}, and no component of the mix has such a field or "
                f"suffix; the fields are {sorted(names)}: name one of these, or leave it out"
            )
