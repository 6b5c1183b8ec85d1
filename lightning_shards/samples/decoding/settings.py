"""Checks of the settings of crops and clips, which Python code gives without a parser."""

import math
from typing import Any, cast

from lightning_shards.errors import ConfigError


def require_whole(name: str, value: object, least: int) -> None:
    """Check a whole number against its least value.

    Raises:
        ConfigError: It is smaller, or no whole number.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")


def is_finite(value: object) -> bool:
    """Whether it is a number, neither infinite nor NaN, and no bool."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float comes near
        return False


def require_growing(name: str, value: object) -> None:
    """Check that a setting is two numbers above 0, the second no smaller than the first.

    Raises:
        ConfigError: It is something else.
    """
    numbers = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []
    is_pair = len(numbers) == 2 and all(map(is_finite, numbers))  # noqa: PLR2004 least, greatest
    if not is_pair or not 0 < numbers[0] <= numbers[1]:
        raise ConfigError(f"{name} must be two growing numbers above 0, got {value!r}")
