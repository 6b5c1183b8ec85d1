"""The transforms of fields and of whole samples: what each is given, and its randomness.

A transform is a plain callable: from a field's value to another, or from the fields of a sample to
new ones. Attributes say what it wants: see `takes_bytes`, `takes_arrays` and `takes_rng`.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from lightning_shards.errors import ConfigError, SampleError, TransformError, leave_out_own_frames
from lightning_shards.samples.collate import BatchFormat, Sample, fields_of
from lightning_shards.samples.generators import (
    SampleSeeds,
    callable_name,
    may_draw_from_globals,
    outside_workers,
    own_generators,
    takes_rng,
)
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.urls import redact

Transform: TypeAlias = Callable[..., Any]
"""A field's value to another; with a parameter `rng` it gets a `numpy.random.Generator`."""

SampleTransform: TypeAlias = Callable[..., Any]
"""A dict of fields to another one; with a parameter `rng` it gets a `numpy.random.Generator`."""


_RECIPES = {
    "albumentations": "; albumentations takes arrays of (height, width, channels) by name: wrap it "
    "in def augment(image): return pipeline(image=image.numpy().transpose(1, 2, 0))['image']",
    "torchvision": "; torchvision's transforms take one picture: name them in `transforms` of the "
    "field, whose uint8 tensor needs no ToTensor; for PIL images set decode: {image: pil}",
}


def where_of(sample: Mapping[str, Any]) -> str:
    """What errors call a sample."""
    return f"sample {sample.get('__key__')!r} of {redact(str(sample.get('__url__')))}"


class Step(NamedTuple):
    """A transform of samples or of a field.

    Attributes:
        called: What errors call it.
        function: The transform.
        takes_rng: Whether it has a parameter `rng`.
    """

    called: str
    function: Transform
    takes_rng: bool

    def made(self, sample: Sample, given: Any, rng: np.random.Generator) -> Any:
        """What the transform makes of what it is given, which is a sample or a field of it.

        Raises:
            TransformError: It failed.
        """
        try:
            return self.function(given, **({"rng": rng} if self.takes_rng else {}))
        except ConfigError:  # of no sample
            raise
        except Exception as error:
            leave_out_own_frames(error)
            library = type(inspect.unwrap(self.function)).__module__.partition(".")[0]
            raise TransformError(
                f"{self.called} failed on {where_of(sample)}: {type(error).__name__}: {error}"
                f"{_RECIPES.get(library, '')}"
            ) from error

    def whole(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """The sample with its new fields; the sample that was given is not changed.

        The transform gets the fields in their order, and then the entries that identify the sample.
        These are kept as they came, whatever it returns of them.

        Raises:
            TransformError: It failed, or returned no dict.
        """
        fields = {name: sample[name] for name in fields_of(sample)}
        identity = {name: sample[name] for name in sample if name not in fields}
        made = self.made(sample, fields | identity, rng)
        if not isinstance(made, dict):
            raise TransformError(
                f"{self.called}, on {where_of(sample)}: it returned no dict but a "
                f"{type(made).__name__}; return the dict of all fields"
            )
        return cast("Sample", made) | identity


def sample_steps(transforms: Sequence[SampleTransform]) -> list[Step]:
    """The sample transforms, with their names in errors."""
    return [
        Step(
            f"sample_transforms[{number}], which is {callable_name(transform)}",
            transform,
            takes_rng(transform),
        )
        for number, transform in enumerate(transforms)
    ]


def batch_fields_of(
    samples: Sequence[Sample],
    fields: Sequence[str],
    batch_format: BatchFormat,
    transforms: Sequence[SampleTransform],
) -> list[str]:
    """The fields of a batch of whole samples: those of the configuration first, then new ones.

    Args:
        samples: Of the batch.
        fields: Those of the configuration, which samples have if there are no sample transforms.
        batch_format: A tuple has exactly the fields of the configuration.
        transforms: The sample transforms.

    Raises:
        ConfigError: The batch is to be a tuple, and the sample transforms changed its fields.
        TransformError: The fields of the samples differ.
    """
    if not transforms:
        return list(fields)
    first, made = samples[0], fields_of(samples[0])
    for sample in samples:
        differing = sorted({*made} ^ {*fields_of(sample)})
        if differing:
            has, lacks = (first, sample) if differing[0] in first else (sample, first)
            raise TransformError(
                f"after sample_transforms, sample {has['__key__']!r} has the field "
                f"{differing[0]!r} and sample {lacks['__key__']!r} of the same batch has not; all "
                "samples of a batch need the same fields"
            )
    if batch_format == "tuple" and {*made} != {*fields}:
        raise ConfigError(
            f"batch_format='tuple' has places for the fields {list(fields)}, and sample_transforms "
            f"made {sorted(made)}; take batch_format='dict', or keep the fields"
        )
    return [name for name in fields if name in made] + [n for n in made if n not in fields]


_CROPS = "lightning_shards.samples.crops"
"""The module of the crops, which only splits with images import."""


def is_crop(transform: Transform | None) -> bool:
    """Whether it is a crop of this package, whose `pixels` gives an array and needs no torch.

    A class of the user's that extends one is none, because it may change what comes out.
    """
    return type(transform).__module__ == _CROPS


class SampleTransforms:
    """The transforms of samples and fields, with randomness keyed by the sample's position.

    Args:
        transforms: One callable per field that has one.
        seeds: Key the randomness.
        clock: Told of the time that they take.
        sample_transforms: Callables for whole samples, which are applied first.
        optional: The fields that samples may lack.
        arrays: The fields whose crops give arrays, which need no torch.

    Attributes:
        sample_transforms: As given.
        is_empty: Whether there are none.
        draws_from_globals: Whether they may draw from generators that all threads share.
    """

    def __init__(
        self,
        transforms: Mapping[str, Transform],
        seeds: SampleSeeds,
        clock: StageClock | None = None,
        sample_transforms: Sequence[SampleTransform] = (),
        optional: Collection[str] = (),
        arrays: Collection[str] = (),
    ) -> None:
        self.sample_transforms, self._optional = tuple(sample_transforms), optional
        self._joint = sample_steps(sample_transforms)
        self._steps: dict[str, Step] = {}
        for name, each in transforms.items():
            function = cast("Any", each).pixels if name in arrays and is_crop(each) else each
            called = f"the transform of field {name!r}"
            self._steps[name] = Step(called, function, takes_rng(function))
        self._decoding = {name for name, each in transforms.items() if takes_bytes(each)}
        self._seeds, self._clock = seeds, clock or StageClock()
        steps = [*transforms.values(), *sample_transforms]
        self.is_empty = not steps
        self._own = [generator for step in steps for generator in own_generators(step)]
        self.draws_from_globals = any(map(may_draw_from_globals, steps))

    def takes(self, field: str) -> bool:
        """Whether a transform may be given this field of the configuration."""
        return field in self._steps or bool(self.sample_transforms)

    def apply(self, sample: Sample, position: int) -> Sample:
        """The transformed sample; the one that was given may be changed.

        Args:
            sample: The decoded fields, with `__key__`, `__url__` and `__id__`.
            position: Keys the randomness.

        Raises:
            SampleError: A transform failed, or its field is missing.
        """
        if self.is_empty:
            return sample
        if not self._own:
            return self._apply(sample, position)
        with outside_workers():
            words = self._seeds.generator(position).integers(2**32, size=len(self._own)).tolist()
            for generator, word in zip(self._own, words, strict=True):
                generator.set_random_seed(word)
            return self._apply(sample, position)

    def _apply(self, sample: Sample, position: int) -> Sample:
        begin = self._clock.begin("transform")
        if self.draws_from_globals:
            self._seeds.seed_globals(position)
        rng = self._seeds.generator(position)
        for step in self._joint:
            sample = step.whole(sample, rng)
        if self._joint:
            begin = self._clock.lap("transform", begin, "transform")
        for name, step in self._steps.items():
            if name not in sample:
                raise SampleError(
                    f"sample {sample.get('__key__')!r} has no field {name!r} to transform: a "
                    "stage dropped or renamed it, or a sample transform did"
                )
            value, decodes = sample[name], name in self._decoding
            is_decoded = decodes and not isinstance(value, bytes)
            if name in self._optional and (value is None or is_decoded):  # a default is decoded
                continue
            sample[name] = step.made(sample, value, rng)
            begin = self._clock.lap("decode" if decodes else "transform", begin, "transform")
        return sample


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
