"""What a data module, its splits and the components of a mixture share, and how it is checked.

A setting that is None is that of the next larger part: of a component's split, of a split's module.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Self, Union, cast, get_args, get_origin, get_type_hints

from lightning_shards.config.parsing import build, load_callable, load_callables, with_urls
from lightning_shards.errors import (
    MOST_SEED,
    ConfigError,
    path_as_text,
    require_at_least,
    require_choice,
    require_mapping,
    urls_as_texts,
)
from lightning_shards.plan.mixture_schedule import is_number
from lightning_shards.shards.filters.settings import names_callable, sample_filter
from lightning_shards.shards.joins.settings import join_settings
from lightning_shards.shards.urls import redact_pattern

_FROM_ZERO = ("num_workers", "seed", "shuffle_buffer", "shuffle_run", "max_bad", "epoch", "samples")
_LEAST: Final = {"group": 2} | dict.fromkeys(_FROM_ZERO, 0)
"""The least values of whole numbers, where they are not 1."""

_LOADED = (
    *("transforms", "device_transforms", "decode"),
    *("sample_transforms", "stages", "collate_fn"),
)
"""Settings that are callables, or what names them."""


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


_MAY_BE: Final[Mapping[object, tuple[str, Callable[[Any], bool]]]] = {
    bool: ("True or False", lambda value: isinstance(value, bool)),
    float: ("a number of at least 0", is_number),
    str: ("a text", lambda value: isinstance(value, str)),
    list: ("a list, as in [a, b]", _is_list),
}
"""What a value of a type is called, and whether one is such a value."""


def put(settings: object, **values: object) -> None:
    """Set attributes of a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(settings, name, value)


_hints_of = cache(get_type_hints)


def require_kinds(settings: Any, prefix: str = "") -> None:
    """Check settings against their annotations; `prefix` stands before their names in messages.

    A dict of settings, where an object of a class of settings is wanted, becomes that object; urls
    alone do so, too, where these settings have urls.

    Raises:
        ConfigError: A value is of another type, none of the choices, or a number below the least.
    """
    hints = _hints_of(settings.__class__)
    for name in [each.name for each in fields(settings)]:
        value, hint = getattr(settings, name), hints[name]
        if value is not None or NoneType not in get_args(hint):
            put(settings, **{name: _made(prefix + name, value, hint, _LEAST.get(name, 1))})


@cache
def _kind_of(hint: Any) -> Any:
    """The one kind of value, besides None, or the class of settings; of other kinds any."""
    hints = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [*filter(is_dataclass, hints)] or [kind for kind in hints if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else Any


def _made(name: str, value: Any, hint: Any, least: int) -> object:
    kind = _kind_of(hint)
    origin, entries = get_origin(kind) or kind, get_args(kind)
    value = path_as_text(value) if origin is str else value
    if is_dataclass(origin):
        return _settings_of(origin, name, value)
    if origin is Literal:
        require_choice(name, value, entries)
    elif origin is int:
        return require_at_least(name, value, least, *[MOST_SEED] * (name == "seed"))
    elif origin in _MAY_BE and not _MAY_BE[origin][1](value):
        raise ConfigError(f"{name} must be {_MAY_BE[origin][0]}, got {value!r}")
    if origin is dict:
        require_mapping(name, value)
        return {key: _made(f"{name}.{key}", each, entries[1], 0) for key, each in value.items()}
    if origin is list:
        return [_made(f"{name}[{n}]", each, entries[0], 0) for n, each in enumerate(value)]
    return value


def _settings_of(kind: Any, name: str, value: Any) -> Any:
    """The object of this class that a value is, or whose settings or urls it holds."""
    has_urls = issubclass(kind, ShardSettings)
    value = with_urls(value) if has_urls else value
    if isinstance(value, Mapping):
        value = build(kind, cast("Mapping[str, Any]", value), name)
    if not isinstance(value, kind):
        shards = "; shards alone are a path, a pattern or a list of them"
        raise ConfigError(
            f"{name} must be a {kind.__name__} or a dict of its settings"
            f"{shards * has_urls}, got {type(value).__name__}"
        )
    if not hasattr(kind, "__post_init__"):  # else it has checked itself
        require_kinds(value, f"{name}.")
    return value


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How samples become rows of a batch; see `ShardDataModule`."""

    fields: dict[str, str] | None = None
    defaults: dict[str, Any] | None = None
    decode: dict[str, Any] | None = None
    classes: dict[str, list[str] | dict[str, int]] | None = None
    transforms: dict[str, Any] | None = None
    sample_transforms: list[Any] | None = None

    def check(self) -> None:
        """Refuse settings that are wrong whatever the shards hold, and load callables by names.

        Raises:
            ConfigError: A setting is wrong; the message names it, its value and the remedy.
        """
        require_kinds(self)
        for name in _LOADED:
            if getattr(self, name, None) is not None:
                put(self, **{name: load_callables(name, getattr(self, name))})

    def over(self, general: "Settings") -> Self:
        """These settings, where those that are None are the general ones."""
        names = {each.name for each in fields(self)} & {each.name for each in fields(general)}
        missing = [name for name in names if getattr(self, name) is None]
        return replace(self, **{name: getattr(general, name) for name in missing})


@dataclass(frozen=True)
class ShardSettings(Settings):
    """Which samples of which shards are read, and in which order; see `SplitConfig`."""

    urls: str | list[str] | None = None
    sampling: Literal["resampled", "shuffled", "sequential"] | None = None
    _: KW_ONLY
    join: dict[str, Any] | None = None
    stages: list[Any] | None = None
    shuffle_buffer: int | None = None
    shuffle_run: int | None = None
    shuffle_block: int | None = None
    shuffle_strands: int | None = None
    shuffle_width: int | None = None
    exclude: str | list[str] | dict[str, Any] | None = None
    keep: Any = None
    index: str | None = None

    def check(self) -> None:
        """As of `Settings`; paths become texts, and that of an index is absolute from here on."""
        super().check()
        if self.urls is not None:
            put(self, urls=urls_as_texts(self.urls))
        if names_callable(self.keep):
            put(self, keep=load_callable("keep", self.keep))
        exclude = path_as_text(self.exclude)
        if isinstance(exclude, list | tuple):
            exclude = list(map(path_as_text, cast("Sequence[object]", exclude)))
        put(self, exclude=exclude, index=_folder_of_index(self.index))
        sample_filter(self.keep, exclude)
        join_settings(self.join or {})

    def require_urls(self) -> None:
        """Check that shards are named.

        Raises:
            ConfigError: There are none.
        """
        if not self.urls:
            raise ConfigError(
                "urls is empty; give a path, a pattern like data/{000..009}.tar or a list"
            )

    def __repr__(self) -> str:
        """Like that of any dataclass, but of joins the names, and no secrets of URLs."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {"urls": self.shown_urls, "join": self.join and [*self.join]}
        told = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"{type(self).__name__}({told})"

    @property
    def patterns(self) -> str:
        """The urls in one text, as a command takes them; they may hold secrets."""
        return self.urls if isinstance(self.urls, str) else "::".join(self.urls or ["URLS"])

    @property
    def shown_urls(self) -> str | list[str] | None:
        """The urls without what may be secret in them."""
        if self.urls is None or isinstance(self.urls, str):
            return self.urls and redact_pattern(self.urls)
        return list(map(redact_pattern, self.urls))


def _folder_of_index(given: object) -> str | None:
    """The folder of an index as an absolute path, since a run may change its working directory.

    Raises:
        ConfigError: There is no such folder.
    """
    if given is None:
        return None
    folder = Path(path_as_text(given)).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"index={given!r} is no folder of this machine; make it by `lightning-shards index "
            "URLS --format wids,members --output DIR`"
        )
    return str(folder.absolute())
