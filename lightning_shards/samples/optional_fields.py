"""Optional fields, as in ``{"mask": "mask.png?"}``: samples may have no member for them."""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_shards.errors import ConfigError, MissingFieldError
from lightning_shards.samples.own_generators import are_same

_MARK = "?"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Default:
    """The value of an optional field in samples that have no such member.

    Attributes:
        value: As a decoder would give it; each sample gets a copy.
    """

    value: Any = None

    def copied(self) -> Any:
        """A copy of the value, which belongs to one sample."""
        return copy.deepcopy(self.value)

    def __eq__(self, other: object) -> bool:
        """Whether the values are equal to the last bit; arrays have no single answer to `==`."""
        return isinstance(other, Default) and are_same(self.value, other.value)

    def __hash__(self) -> int:
        """One for all, because a value may have none."""
        return hash(Default)


def without_mark(text: str) -> str:
    """The suffixes of a field without the `?` that makes it optional.

    >>> without_mark("png;jpg?")
    'png;jpg'
    """
    return text.rstrip().removesuffix(_MARK)


def given_defaults(fields: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Default]:
    """The default of each optional field.

    Args:
        fields: Batch key to suffixes.
        defaults: Batch key to value, for those that are not None.

    Raises:
        ConfigError: One is for a field that is not optional, or a `?` is not at the end.
    """
    optional = [name for name, text in fields.items() if without_mark(text) != text]
    for name in defaults:
        if name not in optional:
            raise ConfigError(
                f"defaults names {name!r}, and the optional fields are {optional}; write "
                f"{{{name}: '{fields.get(name, 'SUFFIX')}?'}} in fields, or leave its default out"
            )
    for name, text in fields.items():
        if _MARK in without_mark(text):
            raise ConfigError(
                f"field {name!r} comes from {text!r}: a `?` stands once, after all suffixes, as in "
                "'jpg;png?'"
            )
    return {name: Default(defaults.get(name)) for name in optional}


def require_found(field: str, suffixes: Sequence[str], looked_at: str, *, are_all: bool) -> None:
    """Say that an optional field is in none of the samples that were looked at.

    Args:
        field: Its name.
        suffixes: The suffixes that its members may have.
        looked_at: What was looked at, in words.
        are_all: Whether these are all samples. If not, only a warning is logged.

    Raises:
        MissingFieldError: These are all samples.
    """
    message = (
        f"optional field {field!r} is in no sample: {looked_at} no member with one of "
        f"{list(suffixes)}"
    )
    if are_all:
        raise MissingFieldError(f"{message}; name another suffix in `fields`, or leave it out")
    _log.warning("%s; if the others have none, name another suffix in `fields`", message)
