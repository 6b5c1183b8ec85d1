"""From a YAML file, a dict or an omegaconf config to a data module."""

import inspect
from collections.abc import Mapping
from os import PathLike, fspath
from pkgutil import resolve_name
from typing import Any, TypeVar, cast, get_args

from omegaconf import DictConfig, OmegaConf, SCMode
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from lightning_shards.config import Split, SplitConfig
from lightning_shards.errors import ConfigError, ShardError
from lightning_shards.parsing import build

_T = TypeVar("_T")


def module_from_config(
    module_class: type[_T], config: DictConfig | Mapping[str, Any] | str | PathLike[str]
) -> _T:
    """The data module that a configuration describes; see `ShardDataModule.from_config`.

    Raises:
        ConfigError: it cannot be read, or holds what the module does not take.
        FileNotFoundError: there is no such file.
    """
    module_class, settings = _chosen_class(module_class, _data_section(module_class, config))
    try:
        return build(module_class, settings, "data")
    except ConfigError as error:
        raise type(error)(placed_message(error, settings)) from error


def placed_message(error: ShardError, settings: Mapping[str, Any]) -> str:
    """The message with the section, and the split where it is one's, that it is about.

    Args:
        error: what a data module or a split said of its settings.
        settings: those of the data module, in plain values.
    """
    if str(error).startswith("data"):  # from the parser, which knows the key
        return str(error)
    split = _refused_split(settings)
    return f"data.{split}: {error}" if split else f"data: {error}"


def omegaconf_message(error: OmegaConfBaseException) -> str:
    """What it says and the key, in one line."""
    return f"{str(error).partition(chr(10))[0]}, at {cast('Any', error).full_key!r}"


def _refused_split(settings: Mapping[str, Any]) -> str | None:
    """The first split that cannot be made of its settings: the error itself does not say."""
    for split in get_args(Split):
        if isinstance(settings.get(split), Mapping):
            try:
                SplitConfig(**settings[split])
            except ShardError:
                return split
    return None


def _data_section(
    module_class: type[object], config: DictConfig | Mapping[str, Any] | str | PathLike[str]
) -> dict[str, Any]:
    """The settings of the module: all of the config, or its section `data` where it has one."""
    where = f"{fspath(config)!r}" if isinstance(config, str | PathLike) else "the config"
    try:
        node = cast("Any", _opened(config))
        if "data" in node and "data" not in inspect.signature(module_class).parameters:
            node = node.data
        if not isinstance(node, DictConfig):
            raise ConfigError(f"{where} must hold the settings of a data module, got {node!r}")
        section = OmegaConf.to_container(
            node, resolve=True, throw_on_missing=True, structured_config_mode=SCMode.DICT
        )
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {omegaconf_message(error)}") from error
    except YAMLError as error:
        raise ConfigError(f"{where} cannot be read: {' '.join(str(error).split())}") from error
    return cast("dict[str, Any]", section)


def _opened(config: DictConfig | Mapping[str, Any] | str | PathLike[str]) -> object:
    if isinstance(config, str | PathLike):
        return OmegaConf.load(fspath(config))
    if OmegaConf.is_config(config):
        return config
    # may hold callables, as Python code writes them
    return OmegaConf.create(dict(config), flags={"allow_objects": True})


def _chosen_class(
    module_class: type[_T], section: dict[str, Any]
) -> tuple[type[_T], dict[str, Any]]:
    """The class that a section names by `class_path`, and its settings."""
    if "class_path" not in section:
        return module_class, section
    try:
        found = resolve_name(section["class_path"])
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"data.class_path cannot be imported: {error}") from error
    if not isinstance(found, type) or not issubclass(found, module_class):
        raise ConfigError(
            f"data.class_path is {section['class_path']!r}, which is no {module_class.__name__}"
        )
    if unknown := sorted(section.keys() - {"class_path", "init_args"}):
        raise ConfigError(f"data takes class_path and init_args, or settings alone, not {unknown}")
    return found, section.get("init_args") or {}
