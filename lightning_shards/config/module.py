"""The settings of a data module, and the door to YAML and omegaconf that makes them."""

import inspect
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, Literal, TypeVar, cast

from omegaconf import DictConfig, OmegaConf, SCMode
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lightning_shards.config.fields import make_all_fields
from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.mixtures import (
    MERGED,
    errors_of_component,
    is_key_of,
    require_same_fields_of,
    with_lower_suffixes,
)
from lightning_shards.config.parsing import (
    build,
    load_callable,
    load_callable_list,
    load_callables,
    load_decoders,
    load_yaml,
    nearest_attribute,
)
from lightning_shards.config.splits import (
    SET_SETTINGS,
    SPLITS,
    Split,
    SplitConfig,
    SplitName,
    missing_split,
    named_splits,
    set_configs,
    split_configs,
    with_set_urls,
    with_urls,
)
from lightning_shards.errors import (
    MOST_SEED,
    ConfigError,
    ShardError,
    UnsafeError,
    require_at_least,
    require_choice,
    require_fields,
    require_list,
    require_mappings,
)
from lightning_shards.readers.stream_stages import first_suffixes
from lightning_shards.samples.collate import RESERVED_KEYS, Collation
from lightning_shards.samples.decoders import UNSAFE_DECODERS
from lightning_shards.samples.fields import Field, suffixes_of, with_given_classes
from lightning_shards.shards.joins.settings import join_settings

_NOT_LOGGED: Final = frozenset(
    ("urls", "join", "keep", "exclude", "cache_dir", "storage_options", "classes", "index")
)
"""Settings that may name places, or are long."""


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
            require_choice("allow_unsafe", name, ("pipe", *sorted(UNSAFE_DECODERS), "ray"))
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
        if self.loader.pool == "ray" and self.num_workers == 0:
            raise ConfigError("pool='ray' needs num_workers of at least 1, got 0; or leave it out")

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
        by_numbers = config.has_joins or config.batch_alike or config.balance
        return replace(
            config,
            reader="indexed" if by_numbers and config.reader == "auto" else config.reader,
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
        try:
            made = make_all_fields(fields, joins, decode, unsafe, transforms, defaults)
        except UnsafeError:
            raise
        except ConfigError as error:
            known = first_suffixes(config.urls or [])
            for field in (Field(name, suffixes_of(text)) for name, text in fields.items()):
                if known and all(field.suffixes) and not field.suffixes_in(known):
                    raise ConfigError(str(field.lacking("the first shard", known))) from error
            raise
        if config.balance not in {None, *(field.name for field in made)}:
            raise ConfigError(
                f"balance={config.balance!r} is none of the fields, which are "
                f"{[field.name for field in made]}; name one of them, or a join"
            )
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


_T = TypeVar("_T")

_Config = DictConfig | Mapping[str, Any] | str | PathLike[str]

_FROM_PARSER: Final = re.compile(r"data(\.[^\s:]+)?: ")
"""The begin of a message that names its key already."""

_OWN_CLASS: Final = (
    "ShardDataModule",
    "lightning_shards.ShardDataModule",
    "lightning_shards.datamodule.ShardDataModule",
)
"""The names that our own data module may have in a configuration."""


def data_from_config(config: _Config) -> DataConfig | None:
    """The settings in a configuration, read as for a data module, but without Lightning.

    None: it names a data module of the user's, and only that class knows what it reads.

    Raises:
        ConfigError: It cannot be read, or holds settings that `ShardDataModule` does not take.
        FileNotFoundError: There is no such file.
    """
    section = _data_section(DataConfig, config)
    if "class_path" in section:
        other_keys = section.keys() - {"class_path", "init_args"}
        if section["class_path"] not in _OWN_CLASS or other_keys:
            return None
        section = cast("dict[str, Any]", section.get("init_args") or {})
    return _made(DataConfig, section)


def plain_settings(settings: object) -> Any:
    """Settings as plain values in dicts and lists, as loggers take them.

    Those that are None or may name places or secrets are left out, and so are names of classes,
    which may be many; a callable is its name, or its name with its settings.
    """
    if isinstance(settings, Mapping):
        given = cast("Mapping[str, object]", settings).items()
        return {name: plain_settings(value) for name, value in given if value is not None}
    if isinstance(settings, list | tuple):
        return list(map(plain_settings, cast("list[object]", settings)))
    if settings is None or isinstance(settings, str | int | float):
        return settings
    name = getattr(settings, "__qualname__", type(settings).__qualname__)
    if isinstance(settings, type) or not is_dataclass(settings):
        return name
    known = {each.name: getattr(settings, each.name) for each in fields(settings)}
    plain = plain_settings({key: known[key] for key in known if key not in _NOT_LOGGED})
    return {name: plain} if callable(settings) else plain


def module_from_config(module_class: type[_T], config: _Config) -> _T:
    """The data module that a configuration describes; see `ShardDataModule.from_config`.

    Raises:
        ConfigError: It cannot be read, or holds settings that the module does not take.
        FileNotFoundError: There is no such file.
    """
    module_class, settings, unchecked = _chosen_class(
        module_class, _data_section(module_class, config)
    )
    return _made(module_class, settings, unchecked)


def _made(
    module_class: type[_T], settings: Mapping[str, Any], unchecked: Mapping[str, Any] | None = None
) -> _T:
    """The object of these settings, where a split may be its urls alone."""
    splits = {name: with_urls(settings[name]) for name in SPLITS if name in settings}
    sets = {name: with_set_urls(settings[name]) for name in SET_SETTINGS if name in settings}
    try:
        return build(module_class, {**settings, **splits, **sets}, "data", unchecked)
    except ConfigError as error:
        raise type(error)(placed_message(error, settings)) from error
    except TypeError as error:
        if not unchecked:
            raise
        raise ConfigError(f"data.dict_kwargs: {error}") from error


def read_setting(path: str | PathLike[str], key: str, default: object = None) -> object:
    """One setting of a YAML of LightningCLI, as in `trainer.devices`, with interpolations resolved.

    Raises:
        ConfigError: The file is not YAML, or an interpolation cannot be resolved.
        OSError: There is no such file, or it holds a bare value.
    """
    with _errors_name(repr(fspath(path))):
        return OmegaConf.select(OmegaConf.load(fspath(path)), key, default=default)


def placed_message(error: ShardError, settings: Mapping[str, Any]) -> str:
    """The message with the section that it is about, and the split if it is about one.

    Args:
        error: An error of a data module or of a split about its settings.
        settings: The settings of the data module, in plain values.
    """
    if _FROM_PARSER.match(str(error)):
        return str(error)
    split = _refused_split(settings)
    return f"data.{split}: {error}" if split else f"data: {error}"


def omegaconf_message(error: OmegaConfBaseException) -> str:
    """The message and the key, in one line."""
    said = str(error).partition(chr(10))[0]
    is_variable = re.search("'[A-Z][A-Z0-9_]*' not found", said)
    remedy = "; a variable of the environment is ${oc.env:NAME}" if is_variable else ""
    return f"{said}, at {cast('Any', error).full_key!r}{remedy}"


def _refused_split(settings: Mapping[str, Any]) -> str | None:
    """The first split whose settings are refused; the error itself does not name it."""
    for key, given in _given_splits(settings):
        if isinstance(given, Mapping):
            try:
                SplitConfig(**cast("Mapping[str, Any]", given))
            except ShardError:
                return key
    return None


def _given_splits(settings: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The key and the value of each split and each set in the settings of a data module."""
    yield from ((split, settings.get(split)) for split in SPLITS)
    for setting in SET_SETTINGS:
        sets: Mapping[str, object] = settings.get(setting) or {}
        yield from ((f"{setting}.{name}", split) for name, split in sets.items())


def _data_section(module_class: type[object], config: _Config) -> dict[str, Any]:
    """The settings of the module: the section `data` of the config if it has one, or all of it."""
    where = repr(fspath(config)) if isinstance(config, str | PathLike) else "the config"
    with _errors_name(where):
        node = cast("Any", _opened(config))
        if "data" in node and "data" not in inspect.signature(module_class).parameters:
            node = node.data
        if not isinstance(node, DictConfig):
            raise ConfigError(f"{where} must hold the settings of a data module, got {node!r}")
        section = OmegaConf.to_container(
            node, resolve=True, throw_on_missing=True, structured_config_mode=SCMode.DICT
        )
    return cast("dict[str, Any]", section)


@contextmanager
def _errors_name(where: str) -> Generator[None]:
    """Turn errors of YAML and omegaconf into ours, in one line that begins with the file's name."""
    try:
        yield
    except ShardError:  # a ConfigError is a ValueError, too
        raise
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {omegaconf_message(error)}") from error
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{where} cannot be read: {' '.join(str(error).split())}") from error


def _opened(config: _Config) -> object:
    if isinstance(config, str | PathLike):
        loaded = load_yaml(Path(config).read_text(encoding="utf-8"))
        return loaded if isinstance(loaded, str) else OmegaConf.create(loaded or {})
    if OmegaConf.is_config(config):
        return config
    # A config made by Python code may hold callables.
    return OmegaConf.create(dict(config), flags={"allow_objects": True})


def _chosen_class(
    module_class: type[_T], section: dict[str, Any]
) -> tuple[type[_T], dict[str, Any], dict[str, Any]]:
    """The class that a section names by `class_path`, its settings, and unchecked settings."""
    if "class_path" not in section:
        return module_class, section, {}
    chosen_class = _named_class(module_class, section["class_path"])
    if unknown := sorted(section.keys() - {"class_path", "init_args", "dict_kwargs"}):
        raise ConfigError(f"data takes class_path and init_args, or settings alone, not {unknown}")
    return chosen_class, section.get("init_args") or {}, section.get("dict_kwargs") or {}


def _named_class(module_class: type[_T], path: Any) -> type[_T]:
    """The class at an import path, or the already imported class of this bare name."""
    known = {known_class.__name__: known_class for known_class in _with_subclasses(module_class)}
    try:
        found = known.get(path) or resolve_name(path)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        meant = nearest_attribute(error)
        raise ConfigError(f"data.class_path cannot be imported: {error}{meant}") from error
    if not isinstance(found, type) or not issubclass(found, module_class):
        raise ConfigError(f"data.class_path is {path!r}, which is no {module_class.__name__}")
    return found


def _with_subclasses(kind: type[_T]) -> Iterator[type[_T]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)
