"""The fields of a sample, made from its members: selected by suffix, decoded, transformed."""

import io
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from lightning_shards.errors import (
    ConfigError,
    MissingFieldError,
    SampleError,
    UnsafeError,
    count_of,
    leave_out_own_frames,
)
from lightning_shards.samples.collate import Sample
from lightning_shards.samples.decoding import images
from lightning_shards.samples.decoding.arrays import (
    NUMBER_DECODERS,
    decode_npy,
    decode_safetensors,
    require_safetensors,
)
from lightning_shards.samples.loaded_torch import as_tensor, load_torch
from lightning_shards.samples.transforms import Transform, takes_arrays
from lightning_shards.shards.classes import ClassNames
from lightning_shards.shards.tar.walk import RESERVED_SUFFIXES
from lightning_shards.shards.urls import redact

Decoder: TypeAlias = Callable[[bytes], Any]
"""Bytes of a member to a value; raises ValueError or OSError for bytes it cannot read."""


def _decode_int(data: bytes) -> int:
    number = int(data)
    if not -(2**63) <= number < 2**63:
        raise ValueError("it fits no int64; decode it as 'text'")
    return number


def _decode_pth(data: bytes) -> Any:
    return load_torch().load(io.BytesIO(data), weights_only=True, map_location="cpu")


DECODERS: dict[str, Decoder] = {
    "raw": bytes,
    "text": bytes.decode,
    "int": _decode_int,
    "json": json.loads,
    "npy": decode_npy,
    "safetensors": decode_safetensors,
    **NUMBER_DECODERS,
    "rgb": images.decode_rgb,
    "gray": images.decode_gray,
    "pil": images.decode_pil,
    "pickle": pickle.loads,  # refused unless it is named in allow_unsafe
    "pth": _decode_pth,  # refused unless it is named in allow_unsafe
}
CLASS = "class"
"""The decoder of names of classes; its function is in the field, because each has its own names."""

_PIXEL_DECODERS = frozenset({"rgb", "gray"})
IMAGE_DECODERS = _PIXEL_DECODERS | {"pil"}
_TORCH_DECODERS = frozenset({"safetensors", "pth"})
UNSAFE_DECODERS = frozenset({"pickle", "pth"})

_SUFFIX_DECODERS = {
    "int": "cls cls2 class count index inx id",
    "text": "txt text transcript",
    "json": "json jsn",
    "npy": "npy",
    "safetensors": "safetensors",
    "rgb": "jpg jpeg png webp gif bmp tif tiff ppm pgm pnm",
    "pickle": "pkl pickle pyd",
    "pth": "pth",
}
_MOST_NAMED = 50
"""Suffixes of a sample that an error lists."""

_BY_SUFFIX = {suffix: name for name, text in _SUFFIX_DECODERS.items() for suffix in text.split()}


def decoder_of(suffix: str) -> str:
    """The name of the default decoder of a suffix; `raw` for an unknown suffix."""
    return _BY_SUFFIX.get(suffix.rsplit(".", 1)[-1].lower(), "raw")


@dataclass(frozen=True)
class Field:
    """One entry of a batch and the members that its values come from.

    Attributes:
        name: Its key in the batch.
        suffixes: Member suffixes, of which the first that a sample has is taken.
        decoder: Name of the decoder; None for the default decoder of each suffix.
        classes: The classes, with the decoder `class`; None as long as they are unknown.
        gives_arrays: Whether decoded pixels are arrays and not tensors (see `with_arrays`).
    """

    name: str
    suffixes: tuple[str, ...]
    decoder: str | None = None
    classes: ClassNames | None = None
    gives_arrays: bool = False

    @cached_property
    def decoders(self) -> frozenset[str]:
        """Names of the decoders that this field can need."""
        return frozenset(self.decoder or decoder_of(suffix) for suffix in self.suffixes)

    def function(self, decoder: str) -> Decoder:
        """The function of one of its decoders."""
        if self.classes is not None:
            return self.classes.number_of
        if decoder in _PIXEL_DECODERS and not self.gives_arrays:
            return lambda data: as_tensor(DECODERS[decoder](data))
        return DECODERS[decoder]

    def decode(self, members: Mapping[str, Any]) -> Any:
        """The value of this field in a sample.

        Raises:
            MissingFieldError: The sample has none of the suffixes.
            SampleError: Its bytes cannot be decoded.
        """
        suffix = next((suffix for suffix in self.suffixes if suffix in members), None)
        where = f"sample {members['__key__']!r} of {redact(members['__url__'])}"
        if suffix is None:
            suffixes = sorted(key for key in members if not key.startswith("__"))[:_MOST_NAMED]
            raise MissingFieldError(
                f"{where} has no member for field {self.name!r}: wanted one of "
                f"{list(self.suffixes)}, found {suffixes}; name one of these in `fields`"
            )
        decoder = self.decoder or decoder_of(suffix)
        data = members[suffix]
        try:
            return self.function(decoder)(data)
        except SampleError as error:  # it names the remedy itself
            raise SampleError(
                f"{where}: member {suffix!r} of field {self.name!r}: {error}"
            ) from error
        except Exception as error:
            leave_out_own_frames(error)
            raise SampleError(
                f"{where}: member {suffix!r} ({count_of(len(data), 'byte')}) cannot be decoded as "
                f"{decoder!r} for field {self.name!r}: {error}; "
                f"{decode_remedy(self.name, decoder, data)}"
            ) from error


def make_fields(
    fields: Mapping[str, str], decode: Mapping[str, str], allow_unsafe: frozenset[str]
) -> tuple[Field, ...]:
    """The fields of a split, checked.

    Args:
        fields: Batch key to suffixes, as in ``{"image": "jpg;jpeg;png", "label": "cls"}``.
        decode: Batch key to the name of a decoder.
        allow_unsafe: Decoders that can run code and are wanted all the same.

    Raises:
        ConfigError: No fields, an unknown decoder, or a decoder whose library is missing.
        UnsafeError: A field needs a decoder of pickles that is not switched on.
    """
    if not fields:
        raise ConfigError("fields is empty; name at least one, as in {'image': 'jpg;png'}")
    for what, names in (
        ("decode", decode.keys() - fields.keys()),
        ("fields", {"__key__"} & fields.keys()),
    ):
        if names:
            raise ConfigError(
                f"{what} names {sorted(names)}, which cannot be a field of {sorted(fields)}"
            )
    made = tuple(
        Field(name, tuple(part.strip().lower() for part in text.split(";")), decode.get(name))
        for name, text in fields.items()
    )
    for made_field in made:
        _require_decoders(made_field, allow_unsafe)
    return made


def _require_decoders(field: Field, allow_unsafe: frozenset[str]) -> None:
    if not all(field.suffixes) or field.name.startswith("__"):
        raise ConfigError(
            f"field {field.name!r} comes from suffixes {list(field.suffixes)}: write them as "
            "'jpg;png', none empty, and let no field's name begin with '__'"
        )
    reserved = RESERVED_SUFFIXES.intersection(field.suffixes)
    if reserved:
        raise ConfigError(
            f"field {field.name!r} asks for members {min(reserved)!r}, a name that samples use for "
            "themselves: no shard may hold such members; name another suffix"
        )
    unknown = field.decoders - DECODERS.keys() - {CLASS}
    if unknown:
        raise ConfigError(
            f"field {field.name!r} asks for decoder {min(unknown)!r}, which does not exist; "
            f"take one of {sorted([*DECODERS, CLASS])}, or 'raw' and a transform"
        )
    unsafe = (field.decoders & UNSAFE_DECODERS) - allow_unsafe
    if unsafe:
        name = min(unsafe)
        raise UnsafeError(
            f"field {field.name!r} would be decoded as {name!r}, which can run any program that is "
            f"hidden in a shard; if you made these shards yourself: allow_unsafe=[{name!r}]"
        )
    if field.decoders & IMAGE_DECODERS:
        images.require_backend("pillow")
    if "safetensors" in field.decoders:
        require_safetensors()


def with_arrays(
    fields: Iterable[Field], transforms: Mapping[str, Transform], *, plain: bool = False
) -> tuple[Field, ...]:
    """The fields, of which some give decoded pixels as arrays, so that torch is not needed.

    These are the fields whose transform has the attribute ``takes_arrays = True``. What a transform
    is given depends on nothing else.

    Args:
        fields: The fields of a split.
        transforms: The transforms of the split.
        plain: Whether fields without a transform give arrays, too.
    """
    return tuple(
        replace(field, gives_arrays=takes_arrays(transforms[field.name]))
        if field.name in transforms
        else replace(field, gives_arrays=plain)
        for field in fields
    )


def decoding_loads_torch(
    fields: Iterable[Field], transforms: Mapping[str, Transform], *, plain: bool = True
) -> bool:
    """Whether decoding these fields makes tensors, for which each worker needs torch.

    `plain` says whether fields without a transform give arrays, as in `with_arrays`.
    """
    return any(
        field.decoders & _TORCH_DECODERS
        or (field.decoders & _PIXEL_DECODERS and not field.gives_arrays)
        for field in with_arrays(fields, transforms, plain=plain)
    )


def counted(
    samples: Iterable[Sample], fields: Iterable[Field], transforms: Mapping[str, Transform]
) -> Iterator[Sample]:
    """The samples of one batch, with the pixels of images counted that no transform crops.

    Raises:
        SampleError: The images have too many pixels together.
    """
    counts = {
        field.name: images.PixelCount(field.name)
        for field in fields
        if field.decoders & IMAGE_DECODERS and field.name not in transforms
    }
    for sample in samples:
        for name, count in counts.items():
            count.add(sample.get(name))
        yield sample


def decode_remedy(field: str, decoder: str, data: bytes) -> str:
    """The settings that would read a member which is no whole number, or general advice.

    >>> decode_remedy("label", "int", b"0.5")
    'for such numbers set decode: {label: json}'
    """
    if decoder == "int" and _is_fraction(data):
        return f"for such numbers set decode: {{{field}: json}}"
    if decoder == "int" and any(map(str.isalpha, data.decode(errors="ignore"))):
        return (
            f"for texts set decode: {{{field}: text}}; for names of classes set decode: "
            f"{{{field}: class}} and classes: {{{field}: [...]}}, or leave classes out where a "
            "classes.json is beside the shards"
        )
    return "repair the shard, or name another decoder in `decode`"


def _is_fraction(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), float)
    except ValueError:  # a UnicodeDecodeError, too
        return False
