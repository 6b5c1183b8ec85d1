"""The writing of `classes.json` beside the shards of a data set, without replacing another one."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from lightning_shards.errors import ConfigError
from lightning_shards.shards.atomic import replace_file
from lightning_shards.shards.classes import CLASSES, ClassNames, known_classes, read_classes


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
