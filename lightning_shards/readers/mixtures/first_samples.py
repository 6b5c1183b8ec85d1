"""The first samples of a mixture: one of each component, before the batches are made."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from lightning_shards.errors import ShardError
from lightning_shards.plan.place import Place
from lightning_shards.readers.mixtures.alike import ComponentRow, require_alike
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import BatchFormat, LoadedBatch
from lightning_shards.samples.fields import Field
from lightning_shards.samples.loaded_torch import bytes_of, map_columns
from lightning_shards.samples.sample_transforms import fields_of


def first_samples(
    names: Sequence[str], components: Sequence[Source], place: Place
) -> list[LoadedBatch]:
    """A batch of one sample of each component.

    Raises:
        ShardError: One cannot be made; a note says of which component it is.
    """
    return [
        _first_of(number, name, component, place)
        for number, (name, component) in enumerate(zip(names, components, strict=True))
    ]


def require_alike_samples(
    names: Sequence[str],
    fields: Sequence[Sequence[Field]],
    made: Sequence[LoadedBatch],
    batch_format: BatchFormat,
) -> None:
    """Check that these samples of components, which are batches of one, fit into one batch.

    Raises:
        ConfigError: Their fields have other names.
        SampleError: The values of a field do not fit into one tensor.
    """
    rows: list[ComponentRow] = []
    for name, of_component, loaded in zip(names, fields, made, strict=True):
        columns = cast("dict[str, Any]", loaded.batch)
        if batch_format == "tuple":
            configured = [field.name for field in of_component]
            columns = dict(zip(configured, cast("tuple[Any, ...]", loaded.batch), strict=True))
        sample = {key: column[0] for key, column in columns.items()}
        rows.append(ComponentRow(name, fields_of(sample), sample))
    require_alike(rows)


def largest_of(made: Sequence[LoadedBatch]) -> LoadedBatch:
    """The batch with the most bytes in arrays and tensors."""
    return max(made, key=_num_bytes)


def _first_of(number: int, name: str, component: Source, place: Place) -> LoadedBatch:
    try:
        loaded = component.first_sample(place)
    except ShardError as error:
        error.add_note(f"this is component {name!r} of the mixture")
        raise
    if isinstance(loaded.batch, dict) and "__component__" in component.describe().reserved:
        loaded.batch.setdefault("__component__", np.array([number], np.int64))
    return loaded


def _num_bytes(loaded: LoadedBatch) -> int:
    sizes: list[int] = []
    map_columns(loaded.batch, lambda column: sizes.append(bytes_of(column)))
    return sum(sizes)
