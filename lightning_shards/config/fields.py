"""The fields of a split, those that come from joins among them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightning_shards.errors import ConfigError
from lightning_shards.samples.decoders import RAW
from lightning_shards.samples.fields import Field, make_fields
from lightning_shards.samples.transforms import Transform, takes_bytes

if TYPE_CHECKING:
    from lightning_shards.shards.joins.kept import Join
    from lightning_shards.shards.joins.settings import JoinSettings


def make_all_fields(
    fields: Mapping[str, str],
    joins: "Sequence[JoinSettings]",
    decode: Mapping[str, Any],
    *more: Any,
) -> tuple[Field, ...]:
    """The fields of members, and after them those of joins, all checked.

    The arguments are those of `make_fields`, after its first one the settings of the joins.

    Raises:
        ConfigError: As of `make_fields`; or a join has the name of a field.
        UnsafeError: As of `make_fields`.
    """
    for join in joins:
        if join.name in fields:
            raise ConfigError(
                f"join {join.name!r} has the name of a field that comes from "
                f"{fields[join.name]!r}; give one of them another name"
            )
    # until their columns have been looked at
    undecoded = {join.name: RAW for join in joins if not join.is_tar}
    texts = {join.name: join.member_text for join in joins}
    named = {**fields, **texts} if fields else fields
    made = make_fields(named, {**undecoded, **decode}, *more)
    return tuple(replace(field, is_joined=field.name in texts) for field in made)


def with_kinds(
    fields: Iterable[Field],
    joins: "Iterable[Join]",
    decode: Mapping[str, Any],
    transforms: Mapping[str, Transform],
) -> tuple[Field, ...]:
    """The fields, where joined ones without a decoder have those of what their columns hold.

    Raises:
        ConfigError: The name of another decoder is given for a column that holds no texts or bytes.
    """
    kinds = {join.settings.name: join.kind for join in joins if join.kind}
    for name, kind in kinds.items():
        decoder = decode.get(name, kind)
        if isinstance(decoder, str) and decoder != kind and kind not in ("text", RAW):
            raise ConfigError(
                f"join {name!r}: its column holds numbers or nested values ({kind}), and decode="
                f"{decoder!r} takes texts or bytes; leave {name!r} out of decode"
            )
    chosen = {*decode, *(name for name in transforms if takes_bytes(transforms[name]))}
    return tuple(
        replace(field, decoder=kinds[field.name]) if field.name in kinds.keys() - chosen else field
        for field in fields
    )
