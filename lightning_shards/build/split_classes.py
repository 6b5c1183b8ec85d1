"""The comparison of the classes beside the shards of a run, whose numbers one model learns.

Two splits that were packed one by one have numbers of their own. If one lacks a class, the numbers
behind it are others, and labels that are decoded as numbers show nothing of it.
"""

import logging
from collections.abc import Mapping

from lightning_shards.config.module import DataConfig
from lightning_shards.config.sets import SplitName
from lightning_shards.samples.decoders import CLASS
from lightning_shards.shards.classes import CLASS_SUFFIX, CLASSES, ClassNames, found_classes
from lightning_shards.shards.index import ShardIndex

_NUMBERED = frozenset({CLASS, "int"})

_log = logging.getLogger(__name__)


def warn_of_other_numbers(
    data: DataConfig, split: SplitName, indexes: Mapping[SplitName, ShardIndex]
) -> None:
    """Warn if a class has another number in a folder of this split than elsewhere in the run.

    Only splits whose batches have such numbers are compared, and of remote shards only those whose
    classes were looked up. `indexes` are those of this split and of others.
    """
    own = list(found_classes(indexes[split].urls, indexes[split].class_files))
    if not own or not _has_numbers(data, split):
        return
    known: dict[str, tuple[int, str]] = {}
    for other, index in indexes.items():
        if other != split and _has_numbers(data, other):
            for classes in found_classes(index.urls, index.class_files):
                _first_renumbered(known, classes)
    for classes in own:
        name = _first_renumbered(known, classes)
        if name is not None:
            _log.warning(
                "the class %r has the number %d by %s and %d by %s, so that labels of %s do not "
                "mean the same everywhere; pack one of the two anew with --classes and the %s of "
                "the other",
                name,
                *known[name],
                classes.numbers[name],
                classes.source,
                split,
                CLASSES,
            )
            return


def _first_renumbered(known: dict[str, tuple[int, str]], classes: ClassNames) -> str | None:
    """The first class whose number is another one than is known; new ones become known."""
    renumbered = [
        name
        for name, number in classes.numbers.items()
        if known.setdefault(name, (number, classes.source))[0] != number
    ]
    return renumbered[0] if renumbered else None


def _has_numbers(data: DataConfig, split: SplitName) -> bool:
    """Whether batches of a split have numbers of classes that no configuration gives."""
    config = data.split(split)
    parts = [config] if config.mix is None else config.component_splits().values()
    return any(
        CLASS_SUFFIX in field.suffixes and _NUMBERED & field.decoders and field.classes is None
        for part in parts
        for field in data.fields_from(part)
    )
