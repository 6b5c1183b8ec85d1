"""The classes of the samples that `trace` lists."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lightning_shards.errors import SampleError
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.source import ServedSample
from lightning_shards.samples.decoders import CLASS
from lightning_shards.samples.fields import Field
from lightning_shards.shards.classes import CLASS_SUFFIX, ClassNames
from lightning_shards.tools.shard_options import classes_of, with_class_name

_MAX_LABEL = 100
"""Most bytes of a label that are shown."""

ClassesOfRows = dict[tuple[int, int], dict[str, str]]
"""By shard and sample, the number and name of the class in each field that has classes."""


def classes_of_rows(
    rows: Iterable[ServedSample],
    fields: Sequence[Field],
    urls: Sequence[str],
    shards: OpenShards,
    storage_options: Mapping[str, Any],
) -> ClassesOfRows:
    """The classes of these samples, in the fields whose classes are known.

    Args:
        rows: Samples of these shards.
        fields: The fields of the split.
        urls: Its shards.
        shards: The same, open.
        storage_options: How the stores of remote ones are reached.

    Raises:
        ShardError: A shard cannot be read, or has changed.
    """
    beside = classes_of(urls, CLASS_SUFFIX, storage_options)
    named = [
        field
        for field in fields
        if not field.is_joined and (field.classes or (beside and CLASS_SUFFIX in field.suffixes))
    ]
    labels: ClassesOfRows = {}
    for row in rows if named else ():
        members = shards.members(row.shard, row.sample)
        labels[row.shard, row.sample] = {
            field.name: _class_label(field, members, beside) for field in named
        }
    return labels


def _class_label(field: Field, members: Mapping[str, Any], beside: ClassNames | None) -> str:
    """The number and the name of a sample's class; its label as it is if it is of no class."""
    suffix = next((suffix for suffix in field.suffixes if suffix in members), None)
    if suffix is None:
        return ""
    label: bytes = members[suffix]
    text = label[:_MAX_LABEL].decode("utf-8", "replace").strip()
    if field.classes is None or field.decoding_of(suffix).decoder != CLASS:
        return with_class_name(text, beside if suffix == CLASS_SUFFIX else None)
    with suppress(SampleError):
        text = str(field.classes.number_of(label))
    return with_class_name(text, field.classes)
