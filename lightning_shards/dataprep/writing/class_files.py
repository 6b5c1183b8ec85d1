"""The numbers of classes, and the writing of `classes.json`, without replacing another one."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from lightning_shards.errors import ConfigError
from lightning_shards.shards.classes import (
    CLASSES,
    ClassNames,
    known_classes,
    read_class_file,
    read_classes,
    whole_number,
)
from lightning_shards.shards.files import replace_file


def number_classes(names: Iterable[str], given: ClassNames | None = None) -> dict[str, int]:
    """The numbers of classes by name: those that are given, or else from 0 on.

    Names that are all whole numbers are numbered in the order of their values, so that 0, 1, 2 and
    so on stay what they are, also as 0.0, 1.0 and 2.0. Other names are in the order of their
    letters.

    >>> number_classes(["10", "9", "8"]), number_classes(["b", "a"])
    ({'8': 0, '9': 1, '10': 2}, {'a': 0, 'b': 1})

    Raises:
        ConfigError: A name is not among the given ones.
    """
    in_order = sorted(set(names))
    if given is not None:
        unknown = [name for name in in_order if name not in given.numbers]
        if unknown:
            raise ConfigError(
                f"{given.source} has no class {unknown[0]!r}"
                + f", nor {len(unknown) - 1:,} more" * (len(unknown) > 1)
                + "; add what is missing behind its last number, and pack all splits anew by it"
            )
        return dict(given.numbers)
    values = {name: value for name in in_order if (value := whole_number(name)) is not None}
    if len(values) == len(in_order):
        in_order.sort(key=values.__getitem__)
    return {name: number for number, name in enumerate(in_order)}


def given_classes(path: Path) -> ClassNames:
    """The classes in a file that the user named.

    Raises:
        ConfigError: It does not exist, cannot be read, or is of another form.
        FileAccessError: It is a fifo, a socket, a device or a folder.
    """
    classes = read_class_file(path)
    if classes is None:
        raise ConfigError(f"{path} cannot be read; name the {CLASSES} beside other shards")
    return classes


def classes_beside(shards: Iterable[str]) -> dict[str, int]:
    """The numbers of classes by name in the folders of these shards; empty if there are none.

    Raises:
        ConfigError: Two folders have different ones.
    """
    known = known_classes(shards)
    return {} if known is None else dict(known.numbers)


def require_no_other_classes(folder: Path, classes: Mapping[str, int]) -> None:
    """Check that a folder has no other `classes.json` than these classes would give.

    Raises:
        ConfigError: It has another one.
    """
    path = folder / CLASSES
    if not classes or not os.path.exists(path):  # noqa: PTH110 never raises
        return
    try:
        is_same = read_classes(str(folder)) == ClassNames(classes, str(path))
    except ConfigError:
        is_same = False
    if not is_same:
        raise ConfigError(
            f"{path} is there and does not have the {len(classes):,} classes of these samples; "
            "remove it, or name another folder"
        )


def write_classes(folder: Path, classes: Mapping[str, int]) -> None:
    """Write the file in one step, in the order of the numbers; nothing if there are no classes."""
    if classes:
        in_order = dict(sorted(classes.items(), key=lambda item: item[1]))
        replace_file(folder / CLASSES, json.dumps(in_order, indent=1) + "\n")
