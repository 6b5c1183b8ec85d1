"""What the components of a mixture must have in common where they are in one batch.

Their fields must have the same names, and values that fit into one tensor. It is enough to look at
one sample of each component: whether the others of it are alike is checked where it is collated.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.collate import Sample
from lightning_shards.samples.loaded_torch import as_tensor, is_tensor

_APART = "set unit to a multiple of the batch size, so that each batch is of one component"


class ComponentRow(NamedTuple):
    """One sample of a component, by the name of the component."""

    name: str
    fields: Collection[str]
    sample: Mapping[str, Any]


def require_alike(rows: Sequence[ComponentRow]) -> None:
    """Check that samples of these components fit into one batch.

    Raises:
        ConfigError: Their fields have other names.
        SampleError: The values of a field are not of one kind, shape and type of numbers.
    """
    for first, other in pairwise(rows):
        require_same_names(first.name, first.fields, other.name, other.fields)
        for field in first.fields:
            value, other_value = first.sample.get(field), other.sample.get(field)
            if not _are_alike(value, other_value):
                raise SampleError(
                    f"field {field!r} does not fit into one tensor: {_form(value)} in "
                    f"{_described(first)}, but {_form(other_value)} in {_described(other)}; give "
                    "the field of one component a decoder or transform that makes them alike, or "
                    f"{_APART}"
                )


def require_same_names(
    name: str, fields: Collection[str], other_name: str, other_fields: Collection[str]
) -> None:
    """Check that two components, which are in one batch, have fields of the same names.

    Raises:
        ConfigError: They have not.
    """
    if set(fields) != set(other_fields):
        raise ConfigError(
            f"the components of one batch need the same fields, {name!r} has {sorted(fields)} and "
            f"{other_name!r} has {sorted(other_fields)}; name them alike, or {_APART}, with "
            "batch_format='dict'"
        )


def with_one_kind(rows: list[Sample], fields: Sequence[str]) -> list[Sample]:
    """The rows with tensors for the arrays of fields that have both, so that they are stacked.

    Crops of this package give arrays, and other transforms give tensors.
    """
    for field in fields:
        by_type: dict[type, object] = {type(row.get(field)): row.get(field) for row in rows}
        values = filter(_is_array_like, by_type.values())
        if set(map(is_tensor, values)) == {True, False}:
            rows = [
                row | {field: as_tensor(row[field])} if _is_array(row.get(field)) else row
                for row in rows
            ]
    return rows


def _are_alike(value: Any, other: Any) -> bool:
    """Whether two values fit into one tensor, or into one list; one that is missing fits any."""
    if value is None or other is None:
        return True
    if type(value) is type(other) and _is_array_like(value) and _is_array_like(other):
        return value.shape == other.shape and value.dtype == other.dtype  # words cost 40 times that
    return _form(value) == _form(other)


def _form(value: object) -> str:
    """What must be equal, in words."""
    if _is_array_like(value):
        array = cast("Any", value)
        return f"{tuple(array.shape)} {str(array.dtype).removeprefix('torch.')}"
    return "a number" if isinstance(value, bool | int | float | np.generic) else "no number"


def _described(row: ComponentRow) -> str:
    key = row.sample.get("__key__")
    return f"component {row.name!r}" if key is None else f"sample {key!r} of component {row.name!r}"


def _is_array_like(value: object) -> bool:
    return is_tensor(value) or _is_array(value)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) and cast("Any", value).dtype.kind in "buif"
