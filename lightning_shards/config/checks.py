"""Checks of single settings."""

from lightning_shards.errors import ConfigError


def require_at_least(name: str, value: int, least: int) -> None:
    """Check a whole number against its least value.

    Raises:
        ConfigError: It is smaller, or not a whole number.
    """
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Check a setting against its choices.

    Raises:
        ConfigError: It is not one of them.
    """
    if value not in choices:
        raise ConfigError(f"{name} must be one of {list(choices)}, got {value!r}")
