"""The classes of a run: their names for the model, and whether its splits number them alike."""

import logging
from collections.abc import Mapping
from contextlib import closing

from lightning_shards.build.sources import transport_settings
from lightning_shards.config.module import DataConfig
from lightning_shards.config.splits import SplitConfig, SplitName
from lightning_shards.errors import ConfigError
from lightning_shards.remote.storage import remote_storages
from lightning_shards.samples.fields import lack_classes
from lightning_shards.shards.classes import (
    CLASSES,
    ClassNames,
    found_classes,
    known_classes,
    same_classes,
)
from lightning_shards.shards.counts import remote_class_files
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.patterns import expand_urls
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import is_local

_log = logging.getLogger(__name__)


def warn_of_other_numbers(split: SplitName, indexes: Mapping[SplitName, ShardIndex]) -> None:
    """Warn if a class has another number in a folder of this split than elsewhere in the run.

    Of remote shards only those are compared whose classes were looked up. `indexes` are those of
    this split and of others.
    """
    known: dict[str, tuple[int, str]] = {}
    for name in [*(other for other in indexes if other != split), split]:
        for classes in found_classes(indexes[name].urls, indexes[name].class_files):
            for label, number in classes.numbers.items():
                before, source = known.setdefault(label, (number, classes.source))
                if before != number and name == split:
                    _log.warning(
                        "the class %r has the number %d by %s and %d by %s, so that labels of %s "
                        "do not mean the same everywhere; pack one of the two anew with --classes "
                        "and the %s of the other",
                        *(label, before, source, number, classes.source, split, CLASSES),
                    )
                    return


def names_of_classes(data: DataConfig) -> list[str]:
    """The names of the classes of the first split, in the order of their numbers.

    They are those in `classes`, or in the `classes.json` beside its shards, none of which is read.
    A number without a class has an empty name.

    Raises:
        ConfigError: No classes are known, or two fields or components have different ones.
        ShardError: A store does not answer, or no shard has such a name.
    """
    split = next((name for name, config in data.splits.items() if config is not None), "train")
    parts = data.split(split).component_splits().values()
    classes = same_classes([each for part in parts for each in _classes_of(data, part)])
    if classes is None:
        raise ConfigError(
            f"the classes of {split} are unknown: it has no `classes`, and beside its shards is no "
            f"{CLASSES} that can be read; name them, as in classes: {{label: [cat, dog]}}"
        )
    return [classes.name_of(str(number)) for number in range(max(classes.numbers.values()) + 1)]


def _classes_of(data: DataConfig, config: SplitConfig) -> list[ClassNames]:
    """The classes of the fields of a split or a component, as far as they are known."""
    fields = data.fields_from(config)
    known = [field.classes for field in fields if field.classes is not None]
    if known and not lack_classes(fields):
        return known
    urls = expand_urls(config.urls or [], allow_pipe="pipe" in (data.allow_unsafe or ()))
    remote: dict[str, bytes] = {}
    if not all(map(is_local, urls)):
        with closing(Storages(remote_storages(transport_settings(data)))) as storages:
            remote = remote_class_files(urls, storages)
    beside = known_classes(urls, remote)
    return known if beside is None else [*known, beside]
