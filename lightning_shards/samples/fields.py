"""The fields of a sample, made from its members: selected by suffix, decoded, transformed."""

import inspect
import io
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

import torch

from lightning_shards.errors import (
    ConfigError,
    MissingFieldError,
    SampleError,
    TransformError,
    UnsafeError,
    count_of,
    leave_out_own_frames,
)
from lightning_shards.samples import images
from lightning_shards.samples.arrays import (
    NUMBER_DECODERS,
    decode_npy,
    decode_safetensors,
    require_safetensors,
)
from lightning_shards.samples.collate import Sample
from lightning_shards.samples.own_generators import (
    RepeatedTransform,
    outside_workers,
    seeded_objects,
)
from lightning_shards.samples.remedies import decode_remedy
from lightning_shards.samples.seeds import SampleSeeds, preserved_globals
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.classes import ClassNames
from lightning_shards.shards.tar.walk import RESERVED_SUFFIXES
from lightning_shards.shards.urls import redact

Decoder: TypeAlias = Callable[[bytes], Any]
"""Bytes of a member to a value; raises ValueError or OSError for bytes it cannot read."""

Transform: TypeAlias = Callable[..., Any]
"""A field's value to another; with a parameter `rng` it gets a `numpy.random.Generator`."""


def _decode_int(data: bytes) -> int:
    number = int(data)
    if not -(2**63) <= number < 2**63:
        raise ValueError("it fits no int64; decode it as 'text'")
    return number


def _decode_pth(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


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

IMAGE_DECODERS = frozenset({"rgb", "gray", "pil"})
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
    """

    name: str
    suffixes: tuple[str, ...]
    decoder: str | None = None
    classes: ClassNames | None = None

    @cached_property
    def decoders(self) -> frozenset[str]:
        """Names of the decoders that this field can need."""
        return frozenset(self.decoder or decoder_of(suffix) for suffix in self.suffixes)

    def function(self, decoder: str) -> Decoder:
        """The function of one of its decoders."""
        return DECODERS[decoder] if self.classes is None else self.classes.number_of

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


class SampleTransforms:
    """The transforms of all fields, applied with randomness keyed by the sample's position."""

    def __init__(
        self,
        transforms: Mapping[str, Transform],
        seeds: SampleSeeds,
        clock: StageClock | None = None,
    ) -> None:
        self._transforms = [
            (name, step, takes_rng(step), "decode" if takes_bytes(step) else "transform")
            for name, step in transforms.items()
        ]
        self._seeds, self._clock = seeds, clock or StageClock()
        self.names = frozenset(transforms)
        self.draws_from_globals = bool(draw_from_globals(transforms))
        steps = transforms.values()
        self._own = [generator for step in steps for generator in own_generators(step)]

    def apply(self, sample: Sample, position: int) -> Sample:
        """Transform the fields of one sample in place.

        Raises:
            SampleError: A transform failed, or its field is missing.
        """
        if not self._transforms:
            return sample
        begin = self._clock.begin("transform")
        if self._own:
            with outside_workers():
                self._seed_own_generators(position)
                return self._apply(sample, position, begin)
        return self._apply(sample, position, begin)

    def _seed_own_generators(self, position: int) -> None:
        seeds = self._seeds.words(position, len(self._own))
        for generator, seed in zip(self._own, seeds, strict=True):
            generator.set_random_seed(seed)

    def _apply(self, sample: Sample, position: int, begin: float) -> Sample:
        if self.draws_from_globals:
            self._seeds.seed_globals(position)
        rng = self._seeds.generator(position)
        for name, transform, wants_rng, stage in self._transforms:
            sample[name] = _transformed(sample, name, transform, rng if wants_rng else None)
            begin = self._clock.lap(stage, begin, "transform")
        return sample

    def keeping_globals(self) -> AbstractContextManager[None]:
        """A context for one batch, which restores the global generators if these may use them."""
        return preserved_globals() if self.draws_from_globals else nullcontext()


def draw_from_globals(transforms: Mapping[str, Transform]) -> list[str]:
    """Names of the transforms that may draw from generators that all threads share.

    These are transforms with neither a parameter `rng` nor an attribute ``deterministic = True``,
    and transforms with generators of their own.
    """
    return [
        name
        for name, transform in transforms.items()
        if _may_draw_from_globals(transform) or own_generators(transform)
    ]


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


def own_generators(transform: Transform) -> list[Any]:
    """The objects in a transform that are seeded for each sample by their `set_random_seed`."""
    return [] if getattr(transform, "deterministic", False) is True else seeded_objects(transform)


def repeated(transforms: Mapping[str, Transform]) -> dict[str, Transform]:
    """The transforms; those that may draw from global generators are run twice on a first value."""
    return {
        name: RepeatedTransform(name, transform) if _may_draw_from_globals(transform) else transform
        for name, transform in transforms.items()
    }


def _may_draw_from_globals(transform: Transform) -> bool:
    return not takes_rng(transform) and getattr(transform, "deterministic", False) is not True


def takes_bytes(transform: Transform | None) -> bool:
    """Whether a transform decodes by itself, as the crops of `samples.crops` do."""
    return getattr(transform, "takes_bytes", False) is True


def image_backend(transforms: Mapping[str, Transform]) -> str:
    """The image backends of the transforms, which change pixels; `pillow` if none names one."""
    backends = {
        cast("Any", transform).backend
        for transform in transforms.values()
        if takes_bytes(transform)
    }
    return "+".join(sorted(backends)) or "pillow"


def takes_rng(transform: Transform) -> bool:
    """Whether a transform has a parameter named `rng`."""
    try:
        return "rng" in inspect.signature(transform).parameters
    except ValueError:  # a builtin without a signature
        return False


def _transformed(sample: Sample, name: str, transform: Transform, rng: object | None) -> Any:
    if name not in sample:
        raise SampleError(
            f"sample {sample.get('__key__')!r} has no field {name!r} to transform: "
            "a stage dropped or renamed it"
        )
    try:
        return transform(sample[name]) if rng is None else transform(sample[name], rng=rng)
    except Exception as error:
        leave_out_own_frames(error)
        raise TransformError(
            f"the transform of field {name!r} failed on sample {sample.get('__key__')!r} of "
            f"{redact(str(sample.get('__url__')))}: {type(error).__name__}: {error}"
        ) from error
