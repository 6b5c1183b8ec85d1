"""The settings of a data module, and the door to YAML and omegaconf that makes them."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from omegaconf import DictConfig, OmegaConf, SCMode
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lightning_shards.config.fields import make_all_fields
from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.mixtures import require_same_fields_of
from lightning_shards.config.parsing import build, load_callable, load_yaml, plain_message
from lightning_shards.config.settings import Settings, made_settings, put
from lightning_shards.config.splits import (
    SET_SETTINGS,
    SPLITS,
    GivenSplit,
    SplitConfig,
    SplitName,
    kind_of,
    named_sets,
)
from lightning_shards.errors import (
    ConfigError,
    ShardError,
    UnsafeError,
    errors_about,
    require_choice,
    require_mapping,
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
class DataConfig(Settings):
    """The settings of all splits, checked: the arguments of `ShardDataModule`, which explains them.

    What Lightning does with a split is all that it lacks, so that tools need no Lightning.
    """

    train: GivenSplit | None = None
    val: GivenSplit | None = None
    test: GivenSplit | None = None
    predict: GivenSplit | None = None
    _: KW_ONLY
    val_sets: dict[str, GivenSplit] | None = None
    test_sets: dict[str, GivenSplit] | None = None
    predict_sets: dict[str, GivenSplit] | None = None
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
        for split in SPLITS:
            if (given := getattr(self, split)) is not None:
                put(self, **{split: made_settings(split, given, SplitConfig)})
        for setting, split in SET_SETTINGS.items():
            sets = named_sets(setting, getattr(self, setting), getattr(self, split))
            put(self, **{setting: sets})
        self.check()
        require_mapping("fields", self.fields, "{image: jpg;png}")
        for name in ("fields", "defaults", "decode", "classes", "transforms", "device_transforms"):
            put(self, **{name: dict[str, Any](getattr(self, name) or {})})
        put(self, sample_transforms=self.sample_transforms or [])
        if self.loader.pool == "ray" and self.num_workers == 0:
            raise ConfigError("pool='ray' needs num_workers of at least 1, got 0; or leave it out")
        for name in self.allow_unsafe or ():
            require_choice("allow_unsafe", name, ("pipe", *sorted(UNSAFE_DECODERS), "ray"))
        for name in [name for name, split in self.splits.items() if split is not None]:
            self._check_fields(name)
            self.collation_of(name)
        self._require_device_names()

    @property
    def splits(self) -> dict[SplitName, SplitConfig | None]:
        """The settings of each split and each set as given; None: there is no such split."""
        named: dict[SplitName, SplitConfig | None] = {}
        for split in SPLITS:
            named[split] = getattr(self, split)
            sets: dict[str, SplitConfig] = getattr(self, f"{split}_sets", None) or {}
            named |= {f"{split}/{name}": each for name, each in sets.items()}
        return named

    def split(self, name: SplitName) -> SplitConfig:
        """The settings of a split or a set; each missing one is that of all, or a default.

        Raises:
            ConfigError: There is no such split.
        """
        config = self.splits.get(name)
        if config is None:
            given = [split for split, config in self.splits.items() if config is not None]
            raise ConfigError(
                f"there is no {name!r} split; this module was given {given}: name one of these, or "
                f"add {kind_of(str(name))}=SplitConfig(urls=...)"
            )
        is_train = name == "train"
        return replace(
            config.over(self),
            sampling=config.sampling or ("resampled" if is_train else "sequential"),
            remainder=config.remainder or ("drop" if is_train else "balanced"),
        )

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
        alike = config.batch_alike
        with_members = [field.name for field in made if not field.is_joined]
        if alike is not None and alike.field not in with_members:
            raise ConfigError(
                f"batch_alike compares the members of the field {alike.field!r}, and the fields "
                f"that have one are {with_members}; name one of these"
            )
        return with_given_classes(made, config.classes or {})

    def _require_device_names(self) -> None:
        """Refuse device transforms of names that can be in no batch of any split."""
        configs = [self.split(name) for name, config in self.splits.items() if config is not None]
        parts = [p for each in configs for p in each.component_splits().values()]
        if any(p.collate_fn is not None or p.stages or p.sample_transforms for p in parts):
            return  # code of the user's may add entries
        named = {name for part in parts for name in (*(part.fields or {}), *(part.join or {}))}
        unknown = sorted((self.device_transforms or {}).keys() - {*named, *RESERVED_KEYS})
        if unknown and parts:
            raise ConfigError(
                f"device_transforms names {unknown}, and batches have {sorted(named)}; name an "
                "entry of theirs"
            )

    def _check_fields(self, split: SplitName) -> None:
        """Refuse fields that cannot be taken from any shard, and a mix that is not trained on."""
        config = self.split(split)
        if not config.mix:
            self.fields_from(config)
            return
        if split != "train":
            raise ConfigError(
                f"{split} takes no mix, which repeats samples and leaves some out; for each sample "
                "once give the urls of all components, as one list"
            )
        names: dict[str, list[str]] = {}
        for name, component in config.component_splits().items():
            with errors_about(f"component {name!r}", ConfigError):
                fields = self.fields_from(component)
            if not (component.sample_transforms or component.stages):  # these may rename fields
                names[name] = [field.name for field in fields]
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
        keys = config.batch_keys
        if keys is not None and self.batch_format == "tuple":
            raise ConfigError(
                f"batch_keys={keys} of {split!r} has no effect with batch_format='tuple', whose "
                "batches have the fields alone; leave it out"
            )
        for name in keys or ():
            require_choice("batch_keys", name, RESERVED_KEYS)
        of_format = RESERVED_KEYS if self.batch_format == "dict" else ()
        reserved = of_format if keys is None else tuple(keys)
        if config.on_bad_sample == "substitute" and "__weight__" not in reserved:
            raise ConfigError(
                f"on_bad_sample='substitute' of {split!r} says by `__weight__` which samples stand "
                "for bad ones, and its batches have none; take batch_format='dict', and name "
                "'__weight__' in batch_keys if you set them"
            )
        return reserved


_T = TypeVar("_T")

_Config = DictConfig | Mapping[str, Any] | str | PathLike[str]


def data_from_config(config: _Config) -> DataConfig | None:
    """The settings in a configuration, read as for a data module, but without Lightning.

    None: it names a data module of the user's, and only that class knows what it reads.

    Raises:
        ConfigError: It cannot be read, or holds settings that `ShardDataModule` does not take.
        FileNotFoundError: There is no such file.
    """
    section = _data_section(config)
    if "class_path" in section:
        if section["class_path"].rpartition(".")[2] != "ShardDataModule":
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
    if is_dataclass(settings) and not isinstance(settings, type):
        names = [each.name for each in fields(settings) if each.name not in _NOT_LOGGED]
        plain = plain_settings({name: getattr(settings, name) for name in names})
        return {type(settings).__qualname__: plain} if callable(settings) else plain
    is_plain = settings is None or isinstance(settings, str | int | float)
    return settings if is_plain else getattr(settings, "__qualname__", type(settings).__qualname__)


def module_from_config(module_class: type[_T], config: _Config) -> _T:
    """The data module that a configuration describes; see `ShardDataModule.from_config`.

    Raises:
        ConfigError: It cannot be read, or holds settings that the module does not take.
        FileNotFoundError: There is no such file.
    """
    return _made(module_class, _data_section(config))


def _made(module_class: type[_T], section: Mapping[str, Any]) -> _T:
    make: Any = module_class
    if "class_path" in section:
        if unknown := sorted(section.keys() - {"class_path", "init_args"}):
            raise ConfigError(f"data takes class_path and init_args, or settings, not {unknown}")
        make = load_callable("data.class_path", section["class_path"])
        if not (isinstance(make, type) and issubclass(make, module_class)):
            raise ConfigError(
                f"data.class_path must be {module_class.__name__} or a class that is made from it, "
                f"got {section['class_path']!r}"
            )
        section = section.get("init_args") or {}
    try:
        return build(make, section, "data")
    except ConfigError as error:
        raise type(error)(placed_message(error, section)) from error


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
    if re.match(r"(data|trainer)(\.[^\s:]+)?: ", str(error)):
        return str(error)
    given = {split: settings.get(split) for split in SPLITS}
    for setting in SET_SETTINGS:
        sets: Mapping[str, Any] = settings.get(setting) or {}
        given |= {f"{setting}.{name}": sets[name] for name in sets}
    for key, split in given.items():
        if isinstance(split, Mapping):
            try:
                SplitConfig(**cast("Mapping[str, Any]", split))
            except ShardError:
                return f"data.{key}: {error}"
    return f"data: {error}"


def omegaconf_message(error: OmegaConfBaseException) -> str:
    """The message and the key, in one line."""
    said = str(error).partition(chr(10))[0]
    is_variable = re.search(r"'\.*[A-Z][A-Z0-9_]*' not found", said)
    remedy = "; a variable of the environment is ${oc.env:NAME}" if is_variable else ""
    return f"{said}, at {cast('Any', error).full_key!r}{remedy}"


def _data_section(config: _Config) -> dict[str, Any]:
    """The settings of the module: the section `data` of the config if it has one, or all of it."""
    where = repr(fspath(config)) if isinstance(config, str | PathLike) else "the config"
    with _errors_name(where):
        node: Any = config
        if isinstance(config, str | PathLike):
            node = load_yaml(Path(config).read_text(encoding="utf-8"))
        elif not OmegaConf.is_config(config):  # one made by Python code may hold callables
            node = OmegaConf.create(dict(config), flags={"allow_objects": True})
        if "data" in node:
            node = node.data
        if not isinstance(node, DictConfig):
            raise ConfigError(f"{where} must hold the settings of a data module, got {node!r}")
        section: Any = OmegaConf.to_container(
            node, resolve=True, throw_on_missing=True, structured_config_mode=SCMode.DICT
        )
        require_mapping(f"init_args in {where}", section.get("init_args") or {})
    return section


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
        raise ConfigError(f"{where} cannot be read: {plain_message(error)}") from error
