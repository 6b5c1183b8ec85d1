"""The transforms of fields and of whole samples: what each is given, and its randomness.

A transform is a plain callable: from a field's value to another, or from the fields of a sample to
new ones. Attributes say what it wants: see `takes_bytes`, `takes_arrays` and `takes_rng`; the names
in `takes_fields` are the only fields that a transform of samples is given.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError, TransformError, leave_out_own_frames
from lightning_shards.samples.collate import BatchFormat, Sample
from lightning_shards.samples.generators import (
    SampleSeeds,
    callable_name,
    may_draw_from_globals,
    outside_workers,
    own_generators,
    preserved_globals,
    takes_rng,
)
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.urls import redact

if TYPE_CHECKING:
    from lightning_shards.samples.crops import Crop

Transform: TypeAlias = Callable[..., Any]
"""A field's value to another; with a parameter `rng` it gets a `numpy.random.Generator`."""

SampleTransform: TypeAlias = Callable[..., Any]
"""A dict of fields to another one; with a parameter `rng` it gets a `numpy.random.Generator`."""


def fields_of(sample: Mapping[str, Any]) -> list[str]:
    """The names of its fields, without those that begin with two underscores."""
    return [name for name in sample if not name.startswith("__")]


def first_taking(transforms: Iterable[SampleTransform], field: str) -> SampleTransform | None:
    """The first sample transform that is given this field; None if there is none."""
    for transform in transforms:
        names = _taken_fields(transform)
        if names is None or field in names:
            return transform
    return None


def _taken_fields(transform: SampleTransform) -> frozenset[str] | None:
    """The names of the only fields that it is given; None for all of them."""
    given: Any = getattr(transform, "takes_fields", None)
    if given is None:
        return None
    return frozenset((given,) if isinstance(given, str) else given)


_RECIPES = {
    "albumentations": "; albumentations takes arrays of (height, width, channels) by name: wrap it "
    "in def augment(image): return pipeline(image=image.numpy().transpose(1, 2, 0))['image']",
    "torchvision": "; torchvision's transforms take one picture: name them in `transforms` of the "
    "field, whose uint8 tensor needs no ToTensor; for PIL images set decode: {image: pil}",
}


def where_of(sample: Mapping[str, Any]) -> str:
    """What errors call a sample."""
    return f"sample {sample.get('__key__')!r} of {redact(str(sample.get('__url__')))}"


def _made(called: str, function: Transform, sample: Sample, given: Any, **settings: Any) -> Any:
    """What a transform makes of what it is given, which is a sample or the value of a field."""
    try:
        return function(given, **settings)
    except ConfigError:  # of no sample
        raise
    except Exception as error:
        leave_out_own_frames(error)
        library = type(inspect.unwrap(function)).__module__.partition(".")[0]
        raise TransformError(
            f"{called} failed on {where_of(sample)}: {type(error).__name__}: {error}"
            f"{_RECIPES.get(library, '')}"
        ) from error


@dataclass(frozen=True)
class SampleStep:
    """One of the sample transforms.

    Attributes:
        called: What errors call it.
        function: The transform.
        takes_rng: Whether it has a parameter `rng`.
        taken: The names of the only fields that it is given; None for all of them.
    """

    called: str
    function: SampleTransform
    takes_rng: bool
    taken: frozenset[str] | None

    def apply(self, sample: Sample, settings: Mapping[str, Any]) -> Sample:
        """The sample with its new fields; the sample that was given is not changed.

        The transform gets the fields in their order, and then the entries that identify the sample.
        These are kept as they came, whatever it returns of them.

        Raises:
            TransformError: It failed, or returned no dict.
        """
        fields = {name: sample[name] for name in fields_of(sample)}
        identity = {name: sample[name] for name in sample if name not in fields}
        taken = fields.keys() if self.taken is None else self.taken
        given = {name: value for name, value in fields.items() if name in taken}
        made: Any = _made(self.called, self.function, sample, given | identity, **settings)
        if not isinstance(made, dict):
            raise TransformError(
                f"{self.called}, on {where_of(sample)}: it returned no dict but a "
                f"{type(made).__name__}; return the dict of all fields"
            )
        return (
            {name: fields[name] for name in fields if name not in taken}
            | cast("Sample", made)
            | identity
        )


def sample_steps(transforms: Sequence[SampleTransform]) -> list[SampleStep]:
    """The sample transforms, with their names in errors."""
    return [
        SampleStep(
            f"sample_transforms[{number}], which is {callable_name(transform)}",
            transform,
            takes_rng(transform),
            _taken_fields(transform),
        )
        for number, transform in enumerate(transforms)
    ]


def require_same_fields(first: Sample, sample: Sample) -> None:
    """Check that a sample has the fields that the first one of its batch has.

    Raises:
        TransformError: It has others.
    """
    if first.keys() == sample.keys():
        return
    differing = sorted(set(fields_of(first)) ^ set(fields_of(sample)))
    if differing:
        has, lacks = (first, sample) if differing[0] in first else (sample, first)
        raise TransformError(
            f"after sample_transforms, sample {has['__key__']!r} has the field {differing[0]!r} "
            f"and sample {lacks['__key__']!r} of the same batch has not; all samples of a batch "
            "need the same fields"
        )


def batch_fields(
    names: Iterable[str], fields: Sequence[str], batch_format: BatchFormat
) -> list[str]:
    """The fields of a batch in their order: those of the configuration first, then the new ones.

    Args:
        names: The fields that its samples have after the sample transforms.
        fields: Those of the configuration.
        batch_format: A tuple has exactly the fields of the configuration.

    Raises:
        ConfigError: The batch is to be a tuple, and the sample transforms changed its fields.
    """
    made = dict.fromkeys(names)
    if batch_format == "tuple" and made.keys() != set(fields):
        raise ConfigError(
            f"batch_format='tuple' has places for the fields {list(fields)}, and sample_transforms "
            f"made {sorted(made)}; take batch_format='dict', or keep the fields"
        )
    return [name for name in fields if name in made] + [n for n in made if n not in fields]


def batch_fields_of(
    samples: Sequence[Sample],
    fields: Sequence[str],
    batch_format: BatchFormat,
    transforms: Sequence[SampleTransform],
) -> list[str]:
    """The fields of a batch of whole samples: those of `fields` if there are no sample transforms.

    Raises:
        ConfigError: As of `batch_fields`.
        TransformError: The fields of the samples differ.
    """
    if not transforms:
        return list(fields)
    for sample in samples:
        require_same_fields(samples[0], sample)
    return batch_fields(fields_of(samples[0]), fields, batch_format)


_CROPS = "lightning_shards.samples.crops"
"""The module of the crops, which only splits with images import."""


def crops_of(
    transforms: Mapping[str, Transform], without: Collection[str] = ()
) -> "dict[str, Crop]":
    """The transforms that are crops of this package.

    Those of the fields `without` are left out. A class of the user's that extends one is none of
    them, because it may change what comes out.
    """
    return {
        name: cast("Crop", transform)
        for name, transform in transforms.items()
        if type(transform).__module__ == _CROPS and name not in without
    }


class _Step(NamedTuple):
    """One transform: its field, what is called, its keyword `rng`, and the stage of its time."""

    field: str
    function: Transform
    takes_rng: bool
    stage: str
    is_optional: bool


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
        optional: The fields that samples may lack.
        crops: The crops of this package that give arrays, which they write to rows of a batch.

    Attributes:
        crop_shapes: Those of the pixels that each of the crops gives, by field.
        sample_transforms: As given.
        is_empty: Whether there are none.
    """

    def __init__(
        self,
        transforms: Mapping[str, Transform],
        seeds: SampleSeeds,
        clock: StageClock | None = None,
        sample_transforms: Sequence[SampleTransform] = (),
        optional: Collection[str] = (),
        crops: "Mapping[str, Crop]" = MappingProxyType({}),
    ) -> None:
        self._names = frozenset(transforms)
        self.crop_shapes = {name: crop.shape for name, crop in crops.items()}
        self.sample_transforms = tuple(sample_transforms)
        self._sample_steps = sample_steps(sample_transforms)
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
        self.is_empty = not (transforms or sample_transforms)
        self._seeds, self._clock = seeds, clock or StageClock()
        steps = [*transforms.values(), *sample_transforms]
        self._own = [generator for step in steps for generator in own_generators(step)]
        self.draws_from_globals = any(map(may_draw_from_globals, steps))

    def takes(self, field: str) -> bool:
        """Whether a transform may be given this field of the configuration."""
        return field in self._names or first_taking(self.sample_transforms, field) is not None

    def apply(self, sample: Sample, position: int, rows: Rows = _NO_ROWS) -> Sample:
        """The transformed sample; the one that was given may be changed.

        Args:
            sample: The decoded fields, with `__key__`, `__url__` and `__id__`.
            position: Keys the randomness.
            rows: The memory that crops write to, if it is given.

        Raises:
            SampleError: A transform failed, or its field is missing.
        """
        if self.is_empty:
            return sample
        if not self._own:
            return self._apply(sample, position, rows)
        with outside_workers():
            for generator, seed in zip(
                self._own, self._seeds.words(position, len(self._own)), strict=True
            ):
                generator.set_random_seed(seed)
            return self._apply(sample, position, rows)

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
            if step.field not in sample:
                raise SampleError(
                    f"sample {sample.get('__key__')!r} has no field {step.field!r} to transform: a "
                    "stage dropped or renamed it, or a sample transform did"
                )
            value = sample[step.field]
            is_decoded = step.stage == "decode" and not isinstance(value, bytes)
            if step.is_optional and (value is None or is_decoded):  # a default is decoded already
                continue
            settings: dict[str, Any] = {"rng": rng} if step.takes_rng else {}
            if step.field in rows:
                settings["out"] = rows[step.field]
            called = f"the transform of field {step.field!r}"
            made = sample[step.field] = _made(called, step.function, sample, value, **settings)
            assert made is settings.get("out", made)  # no row may keep what was in its memory
            begin = self._clock.lap(step.stage, begin, "transform")
        return sample

    def keeping_globals(self) -> AbstractContextManager[None]:
        """A context for one batch, which restores the global generators if these may use them."""
        return preserved_globals() if self.draws_from_globals else nullcontext()


def takes_bytes(transform: Transform | None) -> bool:
    """Whether a transform decodes by itself, as the crops of `samples.crops` do."""
    return getattr(transform, "takes_bytes", False) is True


def takes_arrays(transform: Transform) -> bool:
    """Whether a transform is given decoded pixels as a numpy array, not as a tensor."""
    return getattr(transform, "takes_arrays", False) is True


def image_backend(transforms: Mapping[str, Transform]) -> str:
    """The image backends of the transforms, which change pixels; `pillow` if none names one.

    >>> from lightning_shards import DecodeResize
    >>> image_backend({"image": DecodeResize(size=8, backend="turbo")})
    'turbo'
    """
    decoding = [cast("Any", each) for each in transforms.values() if takes_bytes(each)]
    backends = {each.backend for each in decoding if hasattr(each, "backend")}
    return "+".join(sorted(backends)) or "pillow"
