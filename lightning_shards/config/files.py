"""The door to YAML and omegaconf: makes a data module, or its settings, from a configuration."""

import inspect
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, TypeVar, cast

from omegaconf import DictConfig, OmegaConf, SCMode
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lightning_shards.config.module import DataConfig
from lightning_shards.config.parsing import build, load_yaml, nearest_attribute
from lightning_shards.config.sets import SET_SETTINGS, with_set_urls
from lightning_shards.config.splits import SPLITS, SplitConfig, with_urls
from lightning_shards.errors import ConfigError, ShardError

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
    return f"{str(error).partition(chr(10))[0]}, at {cast('Any', error).full_key!r}"


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
