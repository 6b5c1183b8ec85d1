"""The fields of a split, those that come from joins among them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lightning_shards.errors import ConfigError
from lightning_shards.samples.decoders import RAW
from lightning_shards.samples.fields import Field, make_fields
from lightning_shards.samples.transforms import Transform, takes_bytes

if TYPE_CHECKING:
    from lightning_shards.shards.joins.settings import JoinSettings
    from lightning_shards.shards.joins.tables import Join

_OF_BYTES: Final = frozenset({"text", "raw", "json"})
"""Kinds of values that are kept as bytes which a decoder may be given."""


def make_all_fields(
    fields: Mapping[str, str],
    joins: "Sequence[JoinSettings]",
    decode: Mapping[str, Any],
    allow_unsafe: frozenset[str],
    transforms: Mapping[str, Transform],
    defaults: Mapping[str, Any],
) -> tuple[Field, ...]:
    """The fields of members, and after them those of joins, all checked.

    The arguments are those of `make_fields`, and the settings of the joins.

    Raises:
        ConfigError: As of `make_fields`; or a join has the name of a field, or a default without a
            use.
        UnsafeError: As of `make_fields`.
    """
    for join in joins:
        if join.name in fields:
            raise ConfigError(
                f"join {join.name!r} has the name of a field that comes from "
                f"{fields[join.name]!r}; give one of them another name"
            )
        if join.name in defaults and join.missing == "raise":
            raise ConfigError(
                f"defaults names {join.name!r}, and missing='raise' of its join leaves no sample "
                "without a value; leave one of them out"
            )
    if not joins or not fields:
        return make_fields(fields, decode, allow_unsafe, transforms, defaults)
    # until their columns have been looked at
    undecoded = {join.name: RAW for join in joins if not join.is_tar}
    texts = {join.name: join.member_text for join in joins}
    made = make_fields(
        {**fields, **texts}, {**undecoded, **decode}, allow_unsafe, transforms, defaults
    )
    return tuple(replace(field, is_joined=field.name in texts) for field in made)


def with_kinds(
    fields: Iterable[Field],
    joins: "Iterable[Join]",
    decode: Mapping[str, Any],
    transforms: Mapping[str, Transform],
) -> tuple[Field, ...]:
    """The fields, where the decoders of joined ones are those of what their columns hold.

    Raises:
        ConfigError: A decoder is named for a column that holds no bytes.
    """
    kinds = {join.settings.name: join.kind for join in joins if join.kind}
    return tuple(
        replace(field, decoder=_decoder(field, kinds[field.name], decode, transforms))
        if field.name in kinds
        else field
        for field in fields
    )


def _decoder(
    field: Field, kind: str, decode: Mapping[str, Any], transforms: Mapping[str, Transform]
) -> Any:
    if field.name not in decode and not takes_bytes(transforms.get(field.name)):
        return kind
    if kind not in _OF_BYTES:
        raise ConfigError(
            f"join {field.name!r}: its column holds numbers ({kind}), and a decoder takes bytes; "
            f"leave {field.name!r} out of decode, and take no transform for it that decodes"
        )
    return field.decoder
