"""The columns of single fields of a batch, from the bytes of their members."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from lightning_shards.errors import SampleError
from lightning_shards.readers.ahead.read_ahead import LargeMembers
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import Column, column_of, numbers_or_list
from lightning_shards.samples.decoding.arrays import NUMBER_COLUMNS, SCALAR_COLUMNS, npy_column
from lightning_shards.samples.decoding.decoders import CLASS, Decoding
from lightning_shards.samples.fields import Field, counted
from lightning_shards.samples.member_bytes import FieldMembers, Ints, MemberBytes
from lightning_shards.shards.classes import ClassNames


def can_decode(field: Field) -> bool:
    """Whether all members of a field are decoded in one way."""
    return len(field.decodings) == 1


def decoder_of(field: Field) -> Callable[[bytes | None], Any]:
    """What makes the value of one member, or stands for a missing one."""
    (decoding,) = field.decodings
    function = field.function(decoding)

    def decode(data: bytes | None) -> Any:
        if data is None:
            return field.missing_value()
        try:
            value = function(data)
            if field.default is not None:  # the sample alone gives the error of its own
                field.default.require_alike(field.name, value)
        except Exception as error:
            raise SampleError(f"field {field.name!r} cannot be decoded: {error}") from error
        return value

    return decode


def decode_column(
    field: Field, members: FieldMembers | LargeMembers, arena: Arena | None = None
) -> Column:
    """One field of a batch, as `Field.decode` and `collate` make it.

    Raises:
        SampleError: One cannot be decoded, or the shapes differ.
    """
    default = field.default
    is_alone = default is not None and (members.has_gaps or default.number_type)
    if not isinstance(members, LargeMembers) and not is_alone:
        column = column_at_once(field, members)
        if column is not None:
            return column
    values = map(decoder_of(field), members.with_gaps())
    samples = ({field.name: value, "__key__": ""} for value in values)
    return column_of(list(counted(samples, [field], {})), field.name, arena)


def column_at_once(field: Field, members: FieldMembers) -> "Column | None":
    """The same for members without gaps, all in one call; None if they have to be made alone."""
    (decoding,) = field.decodings
    decode = _COLUMNS.get(decoding)
    if field.classes is not None and decoding == Decoding(CLASS):
        decode = partial(_numbers, field.classes)
    if decode is not None:
        with suppress(Exception):  # hostile bytes raise anything; `decoder_of` tells why
            return decode(members)
    return None


def loaded(members: MemberBytes | LargeMembers) -> FieldMembers | LargeMembers:
    """Those that can be read at once; of the others none is read yet."""
    if isinstance(members, LargeMembers) and not members.has_gaps:
        return members.loaded()
    return members


def _ints(members: FieldMembers) -> Ints:
    return np.array(list(map(int, members.to_list())), np.int64)


def _numbers(classes: ClassNames, members: FieldMembers) -> Ints:
    return np.array(list(map(classes.number_of, members.to_list())), np.int64)


def _texts(members: FieldMembers) -> list[str]:
    return list(map(bytes.decode, members.to_list()))


def _jsons(members: FieldMembers) -> Column:
    return numbers_or_list(list(map(json.loads, members.to_list())))


_COLUMNS: dict[Decoding, "Callable[[FieldMembers], Column | None]"] = {
    Decoding("int"): _ints,
    Decoding("text"): _texts,
    Decoding("json"): _jsons,
    Decoding("npy"): npy_column,
    **{Decoding(name): column for name, column in (NUMBER_COLUMNS | SCALAR_COLUMNS).items()},
}
