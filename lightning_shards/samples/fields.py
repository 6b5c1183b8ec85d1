"""The fields of a sample, made from its members: selected by suffix and decoded; their classes."""

import copy
import dataclasses
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeAlias

from lightning_shards.errors import (
    ConfigError,
    MissingFieldError,
    SampleError,
    UnsafeError,
    count_of,
    leave_out_own_frames,
)
from lightning_shards.samples.decoders import (
    CLASS,
    DECODERS,
    IMAGE_DECODERS,
    PIXEL_DECODERS,
    RAW,
    UNSAFE_DECODERS,
    Decoder,
    DecoderChoice,
    Decoding,
    OwnDecoder,
    decoding_of,
    gunzip,
    own_decoder,
)
from lightning_shards.samples.tensors import as_tensor
from lightning_shards.samples.transforms import (
    SampleTransform,
    Transform,
    is_crop,
    takes_arrays,
    takes_bytes,
    where_of,
)
from lightning_shards.shards.classes import (
    DIGEST_LENGTH,
    ClassFiles,
    ClassNames,
    agreed_classes,
    numbered_classes,
)

_MOST_NAMED = 50
"""Suffixes of a sample that an error lists."""

_OPTIONAL = "?"
"""After all suffixes of a field, as in ``mask.png?``: samples may have no member for it."""


@dataclass(frozen=True)
class Field:
    """One entry of a batch and the members that its values come from.

    Attributes:
        name: Its key in the batch.
        suffixes: Member suffixes, of which the first that a sample has is taken.
        decoder: What decodes its members; None for the decoder of each suffix.
        classes: The classes, if a decoder is `class`; None as long as they are unknown.
        gives_arrays: Whether decoded pixels are arrays and not tensors (see `with_arrays`).
        is_optional: Whether samples may have no such member.
        default: The value of an optional field in these samples, as a decoder would give it.
        is_joined: Whether its values come from a join, and not from members of its sample.
    """

    name: str
    suffixes: tuple[str, ...]
    decoder: DecoderChoice | None = None
    classes: ClassNames | None = None
    gives_arrays: bool = False
    is_optional: bool = False
    default: Any = dataclasses.field(default=None, compare=False)
    is_joined: bool = False

    def suffixes_in(self, members: Collection[str]) -> list[str]:
        """The first of its suffixes that is among those of a sample, or none."""
        return [suffix for suffix in self.suffixes if suffix in members][:1]

    def missing_value(self) -> Any:
        """A copy of the default, which belongs to one sample without such a member.

        Raises:
            SampleError: The field is not optional.
        """
        if not self.is_optional:
            raise SampleError(f"a sample has no member for field {self.name!r}")
        return copy.deepcopy(self.default)

    @cached_property
    def decodings(self) -> frozenset[Decoding]:
        """The ways in which its members are decoded.

        Raises:
            ConfigError: One of its suffixes has no decoder.
        """
        return frozenset(map(self.decoding_of, self.suffixes))

    @cached_property
    def decoders(self) -> frozenset[DecoderChoice]:
        """The decoders that this field can need; raises what `decodings` does."""
        return frozenset(decoding.decoder for decoding in self.decodings)

    def decoding_of(self, suffix: str) -> Decoding:
        """The way in which its members of a suffix are decoded.

        Raises:
            ConfigError: Nothing is known of the suffix.
        """
        decoding = decoding_of(suffix, self.decoder)
        if decoding is None:
            raise ConfigError(
                f"field {self.name!r} comes from members {suffix!r}, a suffix without a decoder; "
                f"for their bytes set decode: {{{self.name}: raw}}, for a value name a decoder, or "
                f"a function of your own, as in decode: {{{self.name}: my_module.my_decoder}}"
            )
        return decoding

    def function(self, decoding: Decoding) -> Decoder:
        """The function from bytes to a value that does this."""
        decoder = decoding.decoder
        if decoding.is_gzipped:
            decode = self.function(Decoding(decoder))
            return lambda data: decode(gunzip(data))
        if isinstance(decoder, OwnDecoder):
            return decoder.function
        if decoder == CLASS:
            assert self.classes is not None  # `with_found_classes` gave them, or raised
            return self.classes.number_of
        if decoder in PIXEL_DECODERS and not self.gives_arrays:
            return lambda data: as_tensor(DECODERS[decoder](data))
        return DECODERS[decoder]

    def lacking(self, where: str, members: Iterable[str]) -> MissingFieldError:
        """The error about a place without a member for this field, but with these."""
        found = sorted(key for key in members if not key.startswith("__"))
        dotted = [key for key in found if key.endswith(tuple(f".{end}" for end in self.suffixes))]
        meant = (
            "; a key ends at the first dot of a file's name, and all behind it is the suffix, as "
            f"{dotted[0]!r} is: pack the files again under names without other dots"
            if dotted
            else ""
        )
        return MissingFieldError(
            f"{where} has no member for field {self.name!r}: wanted one of {list(self.suffixes)}, "
            f"found {found[:_MOST_NAMED]}{meant}; name one of these in `fields`, or, if only some "
            f"samples lack it, set fields: {{{self.name}: '{';'.join(self.suffixes)}?'}} and a "
            "value in `defaults`, leave these samples out by `keep`, or replace them: "
            "on_bad_sample='substitute' with max_bad"
        )

    def decode(self, members: Mapping[str, Any]) -> Any:
        """The value of this field in a sample.

        Args:
            members: Suffix to bytes, with the `__key__` and the `__url__` of the sample.

        Raises:
            MissingFieldError: The sample has none of the suffixes, and the field is not optional.
            SampleError: Its bytes cannot be decoded.
        """
        for suffix in self.suffixes_in(members):
            return self._decoded(suffix, members)
        if self.is_optional:
            return self.missing_value()
        raise self.lacking(where_of(members), members)

    def _decoded(self, suffix: str, members: Mapping[str, Any]) -> Any:
        """The value of one member."""
        decoding, data, where = self.decoding_of(suffix), members[suffix], where_of(members)
        what = "the value from its join" if self.is_joined else f"member {suffix!r}"
        try:
            return self.function(decoding)(data)
        except ConfigError:  # of no sample
            raise
        except SampleError as error:  # it names the remedy itself
            raise SampleError(f"{where}: {what} of field {self.name!r}: {error}") from error
        except Exception as error:
            leave_out_own_frames(error)
            raise SampleError(
                f"{where}: {what} ({count_of(len(data), 'byte')}) cannot be decoded as "
                f"{decoding.name!r} for field {self.name!r}: {type(error).__name__}: {error}; "
                f"{decoding.remedy(self.name)}"
            ) from error


def make_fields(
    fields: Mapping[str, str],
    decode: Mapping[str, Any],
    allow_unsafe: frozenset[str],
    transforms: Mapping[str, Transform] = MappingProxyType({}),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Field, ...]:
    """The fields of a split, checked.

    Args:
        fields: Batch key to suffixes, as in ``{"image": "jpg;jpeg;png", "label": "cls?"}``, where
            the `?` makes the field optional.
        decode: Batch key to a decoder: its name, or a callable.
        allow_unsafe: Decoders that can run code and are wanted all the same.
        transforms: The transforms of the split; those with ``takes_bytes = True`` decode.
        defaults: Batch key to the value of samples without such a member, instead of None.

    Raises:
        ConfigError: No fields, a suffix without a decoder, or a default of no optional field.
        UnsafeError: A field needs a decoder of pickles that is not switched on.
    """
    decoders = {key: own_decoder(key, value) for key, value in decode.items()}
    _require_names(fields, decoders)
    made = tuple(
        Field(
            name,
            suffixes_of(text),
            _chosen(name, decoders.get(name), transforms.get(name)),
            is_optional=_OPTIONAL in text,
            default=defaults.get(name),
        )
        for name, text in fields.items()
    )
    _require_optional(fields, defaults, made)
    for field in made:
        _require_usable(field, allow_unsafe)
    return made


def _require_optional(
    fields: Mapping[str, str], defaults: Iterable[str], made: Iterable[Field]
) -> None:
    optional = [field.name for field in made if field.is_optional]
    for name in defaults:
        if name not in optional:
            raise ConfigError(
                f"defaults names {name!r}, and the optional fields are {optional}; write "
                f"{{{name}: '{fields.get(name, 'SUFFIX')}?'}} in fields, or leave its default out"
            )


def suffixes_of(text: str) -> tuple[str, ...]:
    """The suffixes of a field as decoders take them, without the `?` that makes it optional.

    >>> suffixes_of("PNG; jpg?")
    ('png', 'jpg')
    """
    parts = text.rstrip().removesuffix(_OPTIONAL).split(";")
    return tuple(part.strip().lower() for part in parts)


def _require_names(fields: Mapping[str, str], decoders: Iterable[str]) -> None:
    if not fields:
        raise ConfigError("fields is empty; name at least one, as in {'image': 'jpg;png'}")
    unknown = sorted(set(decoders) - fields.keys())
    if unknown:
        raise ConfigError(
            f"decode names {unknown}, and the fields are {sorted(fields)}; name a field, or add "
            "one to fields"
        )


def _chosen(
    name: str, decoder: DecoderChoice | None, transform: Transform | None
) -> DecoderChoice | None:
    """The decoder of a field; `raw` if its transform decodes by itself."""
    if not takes_bytes(transform):
        return decoder
    if decoder not in {None, RAW}:
        raise ConfigError(
            f"the transform of {name!r} decodes by itself, and decode={decoder!r} would do so "
            f"before it; leave {name!r} out of decode"
        )
    return RAW


def _require_usable(field: Field, allow_unsafe: frozenset[str]) -> None:
    are_plain = all(re.fullmatch(r"(?!__)[^.*?][^*?]*", suffix) for suffix in field.suffixes)
    if not are_plain or field.name.startswith(("__", ".")):
        raise ConfigError(
            f"field {field.name!r} comes from suffixes {list(field.suffixes)}: write them as "
            "'jpg;png', none empty, no dot before them, no `*`, a `?` only after all, and let no "
            "suffix and no field's name begin with '__' or '.': batches have `__key__` anyway"
        )
    _require_decoders(field, allow_unsafe)


def _require_decoders(field: Field, allow_unsafe: frozenset[str]) -> None:
    names = {decoder for decoder in field.decoders if isinstance(decoder, str)}
    unknown = names - DECODERS.keys() - {CLASS}
    if unknown:
        raise ConfigError(
            f"field {field.name!r} asks for decoder {min(unknown)!r}, which does not exist; "
            f"take one of {sorted(filter(str.isidentifier, [*DECODERS, CLASS]))}, the import path "
            "of a function of your own, or 'raw' and a transform"
        )
    unsafe = (names & UNSAFE_DECODERS) - allow_unsafe
    if unsafe:
        name = min(unsafe)
        raise UnsafeError(
            f"field {field.name!r} would be decoded as {name!r}, which can run any program that is "
            f"hidden in a shard; if you made these shards yourself: allow_unsafe=[{name!r}]"
        )
    if names & IMAGE_DECODERS:
        import_module("lightning_shards.samples.images").require_backend("pillow")


def with_arrays(
    fields: Iterable[Field],
    transforms: Mapping[str, Transform],
    sample_transforms: Sequence[SampleTransform] = (),
    *,
    plain: bool = False,
) -> tuple[Field, ...]:
    """The fields, of which some give decoded pixels as arrays, so that torch is not needed.

    These are the fields whose transform has the attribute ``takes_arrays = True``. If there are
    sample transforms, the first one decides. What a transform is given depends on nothing else.

    Args:
        fields: The fields of a split.
        transforms: The transforms of the split.
        sample_transforms: Those of whole samples.
        plain: Whether fields without a transform, and crops of this package, give arrays, too.
    """

    def gives_arrays(field: Field) -> bool:
        own = transforms.get(field.name)
        first = sample_transforms[0] if sample_transforms else own
        # a column with missing values is a list, where arrays would stay arrays
        if first is None or is_crop(own):
            return plain and not field.is_optional
        return takes_arrays(first)

    return tuple(replace(field, gives_arrays=gives_arrays(field)) for field in fields)


def decoding_loads_torch(fields: Iterable[Field], transforms: Mapping[str, Transform]) -> bool:
    """Whether decoding these fields makes tensors, for which each worker needs torch."""
    return any(
        "pth" in field.decoders
        or (field.decoders & PIXEL_DECODERS and not field.gives_arrays)
        or (is_crop(transforms.get(field.name)) and not field.gives_arrays)
        for field in fields
    )


GivenClasses: TypeAlias = Sequence[str] | Mapping[str, int]
"""The names of classes in the order of their numbers, or numbers from 0 on by name."""


def with_given_classes(
    fields: Sequence[Field], classes: Mapping[str, GivenClasses]
) -> tuple[Field, ...]:
    """The fields, with the classes that a configuration gives.

    Args:
        fields: The fields of a split.
        classes: Batch key to the classes.

    Raises:
        ConfigError: They are given in another form, a name is empty or given twice, or the field is
            not decoded as `class`.
    """
    by_name = {field.name: field for field in fields}
    decoded = [name for name, field in by_name.items() if CLASS in field.decoders]
    for name, given in classes.items():
        if name not in decoded:
            raise ConfigError(
                f"classes names {name!r}, and the fields that are decoded as 'class' are "
                f"{decoded}; add decode: {{{name}: class}}, or leave its classes out"
            )
        numbered = numbered_classes(given, f"`classes` of {name!r}")
        by_name[name] = replace(by_name[name], classes=numbered)
    return tuple(by_name.values())


def lack_classes(fields: Iterable[Field]) -> bool:
    """Whether a field needs the classes that are beside the shards."""
    return any(CLASS in field.decoders and not field.classes for field in fields)


def with_found_classes(
    fields: tuple[Field, ...], urls: Iterable[str], remote: ClassFiles | None = None
) -> tuple[Field, ...]:
    """The fields, where those without classes get the ones in `classes.json` beside the shards.

    Args:
        fields: The fields of a split.
        urls: Its shards.
        remote: What was found in the remote folders among theirs.

    Raises:
        ConfigError: Such a field needs them, and they cannot be found, or two folders disagree.
        FileAccessError: Something other than a file has their name.
    """
    if not lack_classes(fields):
        return fields
    classes = agreed_classes(urls, remote)
    name = classes.renumbered
    if name is not None:
        raise ConfigError(
            f"{classes.source} gives the class {name!r} the number {classes.numbers[name]}, so a "
            f"label {name!r} could be the name or the number of a class; if labels are numbers, as "
            "`pack` writes them, decode them as 'int'; if they are names, give these in the "
            "configuration, in the order of their numbers: classes: {label: [...]}"
        )
    return tuple(
        replace(field, classes=field.classes or classes) if CLASS in field.decoders else field
        for field in fields
    )


def classes_identity(fields: Iterable[Field]) -> dict[str, str]:
    """The classes of these fields in one value, `classes`; empty if no field has any."""
    known = {field.name: field.classes for field in fields if field.classes is not None}
    if not known:
        return {}
    num_names = sum(len(classes.numbers) for classes in known.values())
    texts = (f"{name}\0{classes.digest()}\n" for name, classes in sorted(known.items()))
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()[:DIGEST_LENGTH]
    return {"classes": f"{num_names} names {digest}"}
