"""The transforms of fields: what each is given, and the randomness of its sample.

A transform is a plain callable from a field's value to another. Attributes say what it wants: see
`takes_bytes`, `takes_arrays` and `takes_rng`.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError, TransformError, leave_out_own_frames
from lightning_shards.samples.collate import PixelLayout, Sample
from lightning_shards.samples.crops import (
    DecodeCenterCrop,
    DecodeRandomResizedCrop,
    DecodeResize,
)
from lightning_shards.samples.generators import (
    RepeatedTransform,
    SampleSeeds,
    WatchedTransform,
    outside_workers,
    preserved_globals,
    seeded_objects,
)
from lightning_shards.samples.loaded_torch import torch_if_loaded
from lightning_shards.samples.sample_transforms import SampleTransform, first_taking, sample_steps
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.urls import redact

Transform: TypeAlias = Callable[..., Any]
"""A field's value to another; with a parameter `rng` it gets a `numpy.random.Generator`."""

_DECODER_POSITIONS = 1 << 50
"""Where the positions begin that seed decoders of the user's own, far above those of samples."""

Crop: TypeAlias = DecodeRandomResizedCrop | DecodeCenterCrop | DecodeResize


def crops_of(transforms: Mapping[str, Transform], without: Collection[str] = ()) -> dict[str, Crop]:
    """The transforms that are crops of this package: they can write pixels into given memory.

    Those of the fields `without` are left out. A class of the user's that extends one is none of
    them, because it may change what comes out.
    """
    return {
        name: cast("Crop", transform)
        for name, transform in transforms.items()
        if type(transform) in (DecodeRandomResizedCrop, DecodeCenterCrop, DecodeResize)
        and name not in without
    }


def layouts_of(
    transforms: Mapping[str, Transform], optional: Collection[str] = ()
) -> dict[str, PixelLayout]:
    """The layouts of the pixels that crops of this package make, by field.

    Optional fields have none: a batch in which one is missing has no array of it.
    """
    crops = crops_of(transforms, optional).items()
    return {name: PixelLayout(crop.shape, crop.channels_last) for name, crop in crops}


class TorchLoadedError(Exception):
    """A transform loaded torch, whose generator was not seeded: make the sample again.

    It must be made from the same bytes, because a transform may have changed what it was given.
    """


class _Step(NamedTuple):
    """One transform: its field, what is called, its keyword `rng`, and the stage of its time."""

    field: str
    function: Transform
    takes_rng: bool
    stage: str
    is_optional: bool

    def skips(self, value: Any) -> bool:
        """Whether it is not called, as the field is missing in this sample.

        A default is decoded already.
        """
        is_decoded = self.stage == "decode" and not isinstance(value, bytes)
        return self.is_optional and (value is None or is_decoded)


_DROPPED = b""
"""Stands for the value of a field that a sample has no more: to transform it is an error."""

Rows: TypeAlias = Mapping[str, NDArray[np.uint8]]
"""The rows of a batch that crops write one sample to, by field."""

_NO_ROWS: Rows = {}


class SampleTransforms:
    """The transforms of samples and fields, with randomness keyed by the sample's position.

    Args:
        transforms: One callable per field that has one.
        seeds: Key the randomness.
        clock: Told of the time that they take.
        sample_transforms: Callables for whole samples, which are applied first.
        decoders: Decoders of the user's own, by the names of their fields: they decode before the
            transforms, and may draw from the global generators, too.
        optional: The fields that samples may lack.

    Attributes:
        layouts: Of the pixels that crops of this package make, by field; they give arrays.
        sample_transforms: As given.
        decoders_draw: Whether a decoder of the user's may draw from the global generators.
        is_empty: Whether all fields are decoded for whole batches: no code of the user's is called.
    """

    def __init__(
        self,
        transforms: Mapping[str, Transform],
        seeds: SampleSeeds,
        clock: StageClock | None = None,
        sample_transforms: Sequence[SampleTransform] = (),
        decoders: Mapping[str, Iterable[Callable[..., Any]]] = MappingProxyType({}),
        optional: Collection[str] = (),
    ) -> None:
        self._names = frozenset(transforms) | frozenset(decoders)
        self.layouts = layouts_of(transforms, optional)
        self.sample_transforms = tuple(sample_transforms)
        self._sample_steps = sample_steps(sample_transforms, takes_rng)
        crops = crops_of(transforms, optional)
        self._steps = [
            _Step(
                name,
                crops[name].pixels if name in crops else transform,
                takes_rng(transform),
                "decode" if takes_bytes(transform) else "transform",
                name in optional,
            )
            for name, transform in transforms.items()
        ]
        self.is_empty = not (transforms or sample_transforms or decoders)
        self._seeds, self._clock = seeds, clock or StageClock()
        self._has_torch = torch_if_loaded() is not None
        steps = [*transforms.values(), *sample_transforms]
        self._own = [generator for step in steps for generator in own_generators(step)]
        functions = [function for of_field in decoders.values() for function in of_field]
        self.decoders_draw = any(map(may_draw_from_globals, functions))
        self.draws_from_globals = self.decoders_draw or any(map(may_draw_from_globals, steps))

    def seed_decoders(self, position: int) -> None:
        """Seed the generators that the user's own decoders may draw from, before they decode."""
        if self.decoders_draw:
            self._seeds.seed_globals(_DECODER_POSITIONS + position)

    def takes(self, field: str) -> bool:
        """Whether code of the user's may be given this field of the configuration."""
        return field in self._names or first_taking(self.sample_transforms, field) is not None

    def apply(self, sample: Sample, position: int, rows: Rows = _NO_ROWS) -> Sample:
        """The transformed sample; the one that was given may be changed.

        Args:
            sample: The decoded fields, with `__key__`, `__url__` and `__id__`.
            position: Keys the randomness.
            rows: The memory that crops write to, if it is given.

        Raises:
            SampleError: A transform failed, or its field is missing.
            TorchLoadedError: One loaded torch.
        """
        if self.decoders_draw:
            self._require_no_new_torch()
        if not (self._steps or self._sample_steps):
            return sample
        if self._has_torch:
            return self._applied(sample, position, rows)
        self._has_torch = torch_if_loaded() is not None  # the decoders may have loaded it
        try:
            made = self._applied(sample, position, rows)
        except SampleError:
            self._require_no_new_torch()
            raise
        self._require_no_new_torch()
        return made

    def _require_no_new_torch(self) -> None:
        if not self._has_torch and torch_if_loaded() is not None:
            self._has_torch = True
            raise TorchLoadedError

    def _applied(self, sample: Sample, position: int, rows: Rows) -> Sample:
        if self._own:
            with outside_workers():
                self._seed_own_generators(position)
                return self._apply(sample, position, rows)
        return self._apply(sample, position, rows)

    def _seed_own_generators(self, position: int) -> None:
        seeds = self._seeds.words(position, len(self._own))
        for generator, seed in zip(self._own, seeds, strict=True):
            generator.set_random_seed(seed)

    def _apply(self, sample: Sample, position: int, rows: Rows) -> Sample:
        begin = self._clock.begin("transform")
        if self.draws_from_globals:
            self._seeds.seed_globals(position)
        rng = self._seeds.generator(position)
        for sample_step in self._sample_steps:
            sample = sample_step.apply(sample, {"rng": rng} if sample_step.takes_rng else {})
        if self._sample_steps:
            begin = self._clock.lap("transform", begin, "transform")
        for step in self._steps:
            if step.skips(sample.get(step.field, _DROPPED)):
                continue
            settings: dict[str, Any] = {"rng": rng} if step.takes_rng else {}
            if step.field in rows:
                settings["out"] = rows[step.field]
            made = sample[step.field] = _transformed(sample, step, settings)
            assert made is settings.get("out", made)  # no row may keep what was in its memory
            begin = self._clock.lap(step.stage, begin, "transform")
        return sample

    def keeping_globals(self) -> AbstractContextManager[None]:
        """A context for one batch, which restores the global generators if these may use them."""
        return preserved_globals() if self.draws_from_globals else nullcontext()


def draw_from_globals(transforms: Mapping[str, Transform]) -> list[str]:
    """Names of the transforms that may draw from generators that all threads share.

    These are transforms with neither a parameter `rng` nor an attribute ``deterministic = True``,
    and transforms with generators of their own.
    """
    return [name for name, transform in transforms.items() if may_draw_from_globals(transform)]


def may_draw_from_globals(function: Transform) -> bool:
    """Whether a transform or a decoder may draw from generators that all threads share."""
    return _is_unkeyed(function) or bool(own_generators(function))


def own_generators(transform: Transform) -> list[Any]:
    """The objects in a transform that are seeded for each sample by their `set_random_seed`."""
    return [] if getattr(transform, "deterministic", False) is True else seeded_objects(transform)


def watched(transforms: Mapping[str, Transform]) -> dict[str, Transform]:
    """The transforms, watched on a first value for randomness that cannot be repeated.

    Those that may draw from global generators are run twice, and others may not draw from them.
    """
    return {
        name: watched_callable(f"the transform of field {name!r}", transform)
        for name, transform in transforms.items()
    }


def watched_of_samples(transforms: Sequence[SampleTransform]) -> tuple[SampleTransform, ...]:
    """The sample transforms, as by `watched`."""
    steps = sample_steps(transforms, takes_rng)
    return tuple(watched_callable(step.called, step.function) for step in steps)


def watched_callable(called: str, transform: Transform) -> Transform:
    """A transform or a decoder, as by `watched`; those of this package are left as they are."""
    if type(transform).__module__.startswith("lightning_shards."):
        return transform
    if _is_unkeyed(transform):
        return RepeatedTransform(called, transform)
    return transform if own_generators(transform) else WatchedTransform(called, transform)


def _is_unkeyed(transform: Transform) -> bool:
    return not takes_rng(transform) and getattr(transform, "deterministic", False) is not True


def takes_bytes(transform: Transform | None) -> bool:
    """Whether a transform decodes by itself, as the crops of `samples.crops` do."""
    return getattr(transform, "takes_bytes", False) is True


def takes_arrays(transform: Transform) -> bool:
    """Whether a transform is given decoded pixels as a numpy array, not as a tensor."""
    return getattr(transform, "takes_arrays", False) is True


def image_backend(transforms: Mapping[str, Transform]) -> str:
    """The image backends of the transforms, which change pixels; `pillow` if none names one.

    >>> image_backend({"image": DecodeResize(size=8, backend="turbo", fast=True)})
    'turbo (fast)'
    """
    decoding = [cast("Any", each) for each in transforms.values() if takes_bytes(each)]
    backends = {
        each.backend + (" (fast)" if getattr(each, "fast", False) else "")
        for each in decoding
        if hasattr(each, "backend")
    }
    return "+".join(sorted(backends)) or "pillow"


def takes_rng(transform: Transform) -> bool:
    """Whether a transform has a parameter named `rng`."""
    try:
        return "rng" in inspect.signature(transform).parameters
    except ValueError:  # a builtin without a signature
        return False


def _transformed(sample: Sample, step: _Step, settings: Mapping[str, Any]) -> Any:
    name = step.field
    if name not in sample:
        raise SampleError(
            f"sample {sample.get('__key__')!r} has no field {name!r} to transform: "
            "a stage dropped or renamed it, or a sample transform did"
        )
    try:
        return step.function(sample[name], **settings)
    except ConfigError:  # of no sample
        raise
    except Exception as error:
        leave_out_own_frames(error)
        raise TransformError(
            f"the transform of field {name!r} failed on sample {sample.get('__key__')!r} of "
            f"{redact(str(sample.get('__url__')))}: {type(error).__name__}: {error}"
        ) from error
