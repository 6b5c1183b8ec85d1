"""Several evaluation sets in the place of one split: their names, and how settings give them.

Each set has a name by which everything knows it: `val/web` is the set `web` of `val_sets`. So what
is kept for each split is kept for each set too, and no code needs to know which of the two it has.
"""

import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias, cast

from lightning_shards.config.splits import SPLITS, Split, SplitConfig, split_configs, with_urls
from lightning_shards.errors import ConfigError, ShardError, name_set

SplitName: TypeAlias = str
"""A split, as in ``val``, or one of several evaluation sets, as in ``val/web``."""

EvaluationSplit = Literal["val", "test", "predict"]

SET_SETTINGS: Final[dict[str, EvaluationSplit]] = {
    "val_sets": "val",
    "test_sets": "test",
    "predict_sets": "predict",
}
"""The settings that hold several sets, and the split in whose place these are."""

_SAFE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
"""Names that options, names of files and those of metrics may have in them."""


def kind_of(name: SplitName) -> str:
    """The split that a name stands for, without the set: ``val`` of ``val/web``."""
    return name.partition("/")[0]


def set_of(name: SplitName) -> str:
    """The set of a name, ``web`` of ``val/web``; empty for a split."""
    return name.partition("/")[2]


def named_splits(
    splits: Mapping[Split, SplitConfig | None],
    sets: Mapping[str, Mapping[str, SplitConfig] | None],
) -> dict[SplitName, SplitConfig | None]:
    """The settings of all splits and sets by their names, each set behind the split of its kind.

    >>> web = SplitConfig("a.tar")
    >>> list(named_splits({"train": None, "val": None}, {"val_sets": {"web": web}}))
    ['train', 'val', 'val/web']
    """
    named: dict[SplitName, SplitConfig | None] = {}
    for split, config in splits.items():
        named[split] = config
        for setting, kind in SET_SETTINGS.items():
            if kind == split:
                named |= {
                    f"{split}/{name}": each for name, each in (sets.get(setting) or {}).items()
                }
    return named


def as_settings(named: Mapping[SplitName, SplitConfig | None]) -> dict[str, Any]:
    """The settings that give these splits and sets: what `named_splits` was made of."""
    settings: dict[str, Any] = {name: each for name, each in named.items() if not set_of(name)}
    for setting, split in SET_SETTINGS.items():
        sets = {set_of(name): each for name, each in named.items() if name.startswith(f"{split}/")}
        settings[setting] = sets or None
    return settings


def missing_split(name: object, named: Mapping[SplitName, object]) -> str:
    """What to say of a split that there is not; the user may have given anything as its name."""
    given = [split for split, config in named.items() if config]
    sets = [split for split in given if kind_of(split) == name]
    if sets:
        return f"{name!r} stands for several evaluation sets; name one of {sets}"
    if not isinstance(name, str) or kind_of(name) not in SPLITS:
        meant = get_close_matches(str(name), SPLITS, 1)
        question = f"; did you mean {meant[0]!r}?" if meant else ""
        return f"there is no {name!r} split; a split is one of {', '.join(SPLITS)}{question}"
    remedy = f"{name}=SplitConfig(urls=...)"
    if set_of(name):
        remedy = f"it to {kind_of(name)}_sets"
    return f"there is no {name!r} split; this module was given {given}: add {remedy}"


def set_configs(setting: str, given: object, single: object) -> dict[str, SplitConfig] | None:
    """The configurations of the sets of one kind; None if there are none.

    Args:
        setting: ``val_sets``, ``test_sets`` or ``predict_sets``.
        given: A dict from names to what a split may be given by.
        single: The one split in whose place they are, which must be None.

    Raises:
        ConfigError: They are no such dict, a name cannot be used, or a set cannot work.
    """
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{setting} must be a dict of names to SplitConfigs, as in {{'web': ...}}, got a "
            f"{type(given).__name__}"
        )
    if single is not None:
        split = SET_SETTINGS[setting]
        raise ConfigError(
            f"{split} and {setting} are both given, and a trainer reads one of them; move {split} "
            f"into {setting}, under a name of its own"
        )
    sets = cast("Mapping[object, object]", given)
    _require_names(setting, sets)
    splits = split_configs({f"{setting}.{name}": each for name, each in sets.items()})
    return {str(name): _present(key, splits[key]) for name in sets if (key := f"{setting}.{name}")}


def _present(key: str, config: SplitConfig | None) -> SplitConfig:
    if config is None:
        raise ConfigError(f"{key} is None, which is no evaluation set; leave its name out")
    return config


def _require_names(setting: str, names: Iterable[object]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not _SAFE.fullmatch(name):
            raise ConfigError(
                f"{setting} has a set named {name!r}, and names stand in options and in names of "
                "files; make it a text of letters, digits, _ and -, in quotes where YAML reads it "
                "as a number or as a bool"
            )
        if name.lower() in known:
            raise ConfigError(
                f"{setting} has {known[name.lower()]!r} and {name!r}, which are one name for some "
                "file systems; give one of them another name"
            )
        known[name.lower()] = name


def with_set_urls(sets: object) -> object:
    """Sets of which some are given by their urls alone, with ``{"urls": ...}`` for these."""
    if not isinstance(sets, Mapping):
        return sets
    named = cast("Mapping[str, object]", sets)
    return {name: with_urls(each) for name, each in named.items()}


@contextmanager
def errors_of(name: SplitName) -> Generator[None]:
    """A context whose errors say which of several sets they are about."""
    try:
        yield
    except ShardError as error:
        name_set(error, name)
        raise
