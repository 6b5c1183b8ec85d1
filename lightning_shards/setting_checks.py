"""Checks of single settings: their values, and the containers that they are given in."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from operator import index
from pathlib import PurePath
from typing import Any, cast

from lightning_shards.errors import ConfigError

_MOST = 2**63 - 1
"""The greatest int64."""

MOST_SEED = 2**64 - 1
"""The greatest seed of a random stream (`plan.draws`)."""


def require_at_least(name: str, value: int, least: int, most: int = _MOST) -> None:
    """Check a whole number against its least value, and against what an integer of 64 bits holds.

    Raises:
        ConfigError: It is smaller or greater, or not a whole number.
    """
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if value > most:
        raise ConfigError(f"{name} must be at most {most}, got {value}")


def plain_number(name: str, value: Any, least: int, most: int = _MOST) -> int:
    """A whole number as a plain int; one of numpy or torch is a whole number, and a bool is none.

    Raises:
        ConfigError: It is smaller or greater, or not a whole number.
    """
    if not isinstance(value, bool):
        with suppress(TypeError):
            value = index(value)
    require_at_least(name, value, least, most)
    return value


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Check a setting against its choices.

    Raises:
        ConfigError: It is not one of them.
    """
    if value not in choices:
        named = [choice for choice in choices if isinstance(choice, str)]
        meant = get_close_matches(str(value), named, 1)
        question = f"; did you mean {meant[0]!r}?" if meant else ""
        raise ConfigError(
            f"{name} must be one of {named or list(choices)}, got {value!r}{question}"
        )


def require_mapping(name: str, value: object, example: str = "{image: ...}") -> None:
    """Check that a setting is a mapping from texts.

    Raises:
        ConfigError: It is none, or a key is no text.
    """
    if not isinstance(value, Mapping):
        kind = type(value).__name__  # the value may hold a secret
        raise ConfigError(f"{name} must be a mapping, as in {example}, got a {kind}")
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise ConfigError(
                f"{name} must have texts as its keys, got {key!r}; write the key in quotes, since "
                "YAML reads no, off and 3 as other values than texts"
            )


def require_list(name: str, value: object) -> None:
    """Check that a setting is a list, or a tuple.

    Raises:
        ConfigError: It is none; a single text is none.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise ConfigError(f"{name} must be a list, as in [a, b], got {value!r}")


def require_text(name: str, value: object) -> None:
    """Check that a setting is a text.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, got {value!r}")


def require_fields(fields: object) -> None:
    """Check that the setting `fields` is a mapping from texts to texts.

    Raises:
        ConfigError: It is none.
    """
    require_mapping("fields", fields, "{image: jpg;png}")
    for name, suffixes in cast("Mapping[str, object]", fields).items():
        require_text(f"fields[{name!r}]", suffixes)


def require_mappings(settings: object, names: Sequence[str]) -> None:
    """`require_mapping` for the attributes of these names that are not None."""
    for name in names:
        value = getattr(settings, name)
        if value is not None:
            require_mapping(name, value)


def path_as_text(value: Any) -> Any:
    """The text of a path, and any other value as it is."""
    return str(value) if isinstance(value, PurePath) else value


def urls_as_texts(urls: Any) -> str | list[str]:
    """The setting `urls`, where paths may stand for texts, and any sequence for a list.

    Raises:
        ConfigError: It is neither a text nor a sequence of texts.
    """
    urls = path_as_text(urls)
    if isinstance(urls, str):
        return urls
    if not isinstance(urls, Sequence) or isinstance(urls, bytes | bytearray):
        raise ConfigError(
            f"urls must be a path, a pattern or a list of them, got a {type(urls).__name__}"
        )
    texts: list[Any] = list(map(path_as_text, cast("Sequence[object]", urls)))
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(
                f"urls[{number}] must be a path or a pattern, got a {type(text).__name__}"
            )
    return texts
