"""Optional fields, as in ``{"mask": "mask.png?"}``: samples may have no member for them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lightning_shards.errors import ConfigError, MissingFieldError

_MARK = "?"

_log = logging.getLogger(__name__)


def without_mark(text: str) -> str:
    """The suffixes of a field without the `?` that makes it optional.

    >>> without_mark("png;jpg?")
    'png;jpg'
    """
    return text.rstrip().removesuffix(_MARK)


def suffixes_of(text: str) -> tuple[str, ...]:
    """The suffixes of a field as decoders take them.

    >>> suffixes_of("PNG; jpg?")
    ('png', 'jpg')
    """
    return tuple(part.strip().lower() for part in without_mark(text).split(";"))


def optional_among(fields: Mapping[str, str], defaults: Mapping[str, Any]) -> list[str]:
    """The names of the optional fields, to one of which each default belongs.

    Args:
        fields: Batch key to suffixes.
        defaults: Batch key to the value of samples without such a member.

    Raises:
        ConfigError: A default is for a field that is not optional, or a `?` is not at the end.
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
    return optional


class LackingField(NamedTuple):
    """An optional field that is in none of the samples that were looked at.

    Attributes:
        name: Of the field.
        suffixes: The suffixes that its members may have.
        looked_at: What was looked at, in words.
        are_all: Whether these are all samples.
    """

    name: str
    suffixes: Sequence[str]
    looked_at: str
    are_all: bool


def require_found(lacking: Iterable[LackingField]) -> None:
    """Refuse fields that all samples lack; where some were not looked at, a warning is logged.

    Raises:
        MissingFieldError: There is such a field.
    """
    for field in lacking:
        message = (
            f"optional field {field.name!r} is in no sample: {field.looked_at} no member with one "
            f"of {list(field.suffixes)}"
        )
        if field.are_all:
            raise MissingFieldError(f"{message}; name another suffix in `fields`, or leave it out")
        _log.warning("%s; if the others have none, name another suffix in `fields`", message)


def lacking_in_all(
    components: Sequence[str], lacking: Sequence[Sequence[LackingField]]
) -> list[LackingField]:
    """The fields that every component of a mixture lacks, as those of the whole mixture.

    Args:
        components: Their names.
        lacking: What each of them lacks. One may lack what another has: labels, for instance.
    """
    by_name = [{field.name: field for field in of_component} for of_component in lacking]
    of_mixture: list[LackingField] = []
    for name in by_name[0]:
        parts = [fields[name] for fields in by_name if name in fields]
        if len(parts) < len(components):
            continue
        named = zip(components, parts, strict=True)
        looked_at = " and ".join(f"of component {each!r} {part.looked_at}" for each, part in named)
        suffixes = dict.fromkeys(suffix for part in parts for suffix in part.suffixes)
        are_all = all(part.are_all for part in parts)
        of_mixture.append(LackingField(name, list(suffixes), looked_at, are_all))
    return of_mixture
