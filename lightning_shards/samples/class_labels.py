"""The classes of fields that are decoded as `class`: as configured, or from `classes.json`."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from lightning_shards.errors import ConfigError
from lightning_shards.samples.decoders import CLASS
from lightning_shards.samples.fields import Field
from lightning_shards.shards.classes import (
    DIGEST_LENGTH,
    ClassFiles,
    ClassNames,
    agreed_classes,
    numbered,
    numbered_by_name,
)

GivenClasses: TypeAlias = Sequence[str] | Mapping[str, int]
"""The names of classes in the order of their numbers, or numbers from 0 on by name."""


def with_given_classes(
    fields: Sequence[Field], classes: Mapping[str, GivenClasses]
) -> tuple[Field, ...]:
    """The fields, with the classes that a configuration gives.

    Args:
        fields: The fields of a split.
        classes: Batch key to the classes.

    Raises:
        ConfigError: They are given in another form, a name is empty or given twice, or the field is
            not decoded as `class`.
    """
    decoded = [field.name for field in fields if CLASS in field.decoders]
    for name in classes:
        if name not in decoded:
            raise ConfigError(
                f"classes names {name!r}, and the fields that are decoded as 'class' are "
                f"{decoded}; add decode: {{{name}: class}}, or leave its classes out"
            )
    return tuple(
        replace(field, classes=_given(field.name, classes[field.name]))
        if field.name in classes
        else field
        for field in fields
    )


def lack_classes(fields: Iterable[Field]) -> bool:
    """Whether a field needs the classes that are beside the shards."""
    return any(CLASS in field.decoders and not field.classes for field in fields)


def with_found_classes(
    fields: tuple[Field, ...], urls: Iterable[str], remote: ClassFiles | None = None
) -> tuple[Field, ...]:
    """The fields, where those without classes get the ones in `classes.json` beside the shards.

    Args:
        fields: The fields of a split.
        urls: Its shards.
        remote: What was found in the remote folders among theirs.

    Raises:
        ConfigError: Such a field needs them, and they cannot be found, or two folders disagree.
        FileAccessError: Something other than a file has their name.
    """
    if not lack_classes(fields):
        return fields
    classes = agreed_classes(urls, remote)
    name = classes.renumbered
    if name is not None:
        raise ConfigError(
            f"{classes.source} gives the class {name!r} the number {classes.numbers[name]}, so a "
            f"label {name!r} could be the name or the number of a class; if labels are numbers, as "
            "`pack` writes them, decode them as 'int'; if they are names, give these in the "
            "configuration, in the order of their numbers: classes: {label: [...]}"
        )
    return tuple(
        replace(field, classes=field.classes or classes) if CLASS in field.decoders else field
        for field in fields
    )


def classes_identity(fields: Iterable[Field]) -> dict[str, str]:
    """The classes of these fields in one value, `classes`; empty if no field has any."""
    known = {field.name: field.classes for field in fields if field.classes is not None}
    if not known:
        return {}
    num_names = sum(len(classes.numbers) for classes in known.values())
    texts = (f"{name}\0{classes.digest()}\n" for name, classes in sorted(known.items()))
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()[:DIGEST_LENGTH]
    return {"classes": f"{num_names} names {digest}"}


def _given(name: str, classes: object) -> ClassNames:
    source = f"`classes` of {name!r}"
    if isinstance(classes, Mapping):
        return numbered_by_name(cast("Mapping[Any, object]", classes), source)
    if isinstance(classes, list | tuple):
        return numbered(cast("Sequence[object]", classes), source)
    raise ConfigError(
        f"{source} must be a list of names, as in [cat, dog], or a mapping from name to number, as "
        f"in {{cat: 0, dog: 1}}; got {classes!r}"
    )
