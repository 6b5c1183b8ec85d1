"""The stages of a stream that are the user's own, and those that decode and transform fields."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from lightning_shards.errors import (
    SampleError,
    ShardError,
    TransformError,
    leave_out_own_frames,
)
from lightning_shards.samples.collate import Sample
from lightning_shards.samples.decoders import Decoder, DecoderChoice, OwnDecoder
from lightning_shards.samples.fields import Field
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.transforms import (
    SampleTransform,
    SampleTransforms,
    Transform,
    draw_from_globals,
    may_draw_from_globals,
    watched,
    watched_callable,
    watched_of_samples,
)

OnBad: TypeAlias = Callable[[Sample, SampleError], None]
"""Called with a sample that a stage cannot make: it raises, or the sample is left out."""

_KEPT = ("__key__", "__url__", "__local_path__", "__id__")
"""The keys of a sample that are not suffixes of members."""


@dataclass(frozen=True)
class DecodeFields:
    """A stage that turns members into fields and keeps the keys that identify the sample.

    `seed_decoders` is called with the number of each sample before its members are decoded.
    """

    fields: tuple[Field, ...]
    on_bad: OnBad
    clock: StageClock
    seed_decoders: Callable[[int], None]

    def __call__(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Decode sample by sample."""
        for number, members in enumerate(samples):
            self.seed_decoders(number)
            kept = {key: members[key] for key in _KEPT if key in members}
            try:
                with self.clock.on("decode"):
                    decoded = {field.name: field.decode(members) for field in self.fields}
            except SampleError as error:
                self.on_bad(members, error)
                continue
            yield kept | decoded


@dataclass(frozen=True)
class ApplyTransforms:
    """A stage that transforms its sample number i as the one at position ``first + i * stride``.

    No other worker or rank has the same position in this epoch.
    """

    transforms: SampleTransforms
    first: int
    stride: int
    on_bad: OnBad

    def __call__(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Transform sample by sample."""
        for number, sample in enumerate(samples):
            try:
                transformed = self.transforms.apply(sample, self.first + number * self.stride)
            except SampleError as error:
                self.on_bad(sample, error)
                continue
            yield transformed


Stage: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
"""A webdataset-style stage: from an iterator of samples to an iterator of samples."""


@dataclass(frozen=True)
class NamedStage:
    """A stage whose errors name it by its number in `stages`."""

    number: int
    stage: Stage

    def __call__(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """The samples that the stage makes of these.

        Raises:
            TransformError: The stage raised an error, which is the cause of this one.
            ShardError: What is read or decoded before the stage failed.
        """
        try:
            yield from self.stage(samples)
        except ShardError:
            raise
        except Exception as error:
            leave_out_own_frames(error)
            name = getattr(self.stage, "__name__", type(self.stage).__name__)
            raise TransformError(
                f"stages[{self.number}], which is {name}, failed: {type(error).__name__}: {error}; "
                "it is called with an iterator of samples, each a dict of fields"
            ) from error


def named_callables(
    transforms: Mapping[str, object],
    sample_transforms: Sequence[object],
    stages: Iterable[object] = (),
    fields: Iterable[Field] = (),
) -> tuple[tuple[str, object], ...]:
    """The user's decoders, transforms and stages, each with its name in errors."""
    return (
        *(
            (f"the decoder of {name!r}", function)
            for name, functions in own_decoders(fields).items()
            for function in functions
        ),
        *((f"sample_transforms[{number}]", each) for number, each in enumerate(sample_transforms)),
        *((f"the transform of {name!r}", transform) for name, transform in transforms.items()),
        *((f"stages[{number}]", stage) for number, stage in enumerate(stages)),
    )


def drawing_names(
    transforms: Mapping[str, Transform],
    sample_transforms: Sequence[SampleTransform],
    stages: Iterable[object] = (),
    fields: Iterable[Field] = (),
) -> list[str]:
    """Those that may draw from the generators of the whole process, as errors call them."""
    return [
        *(
            f"the decoder of {name!r}"
            for name, functions in own_decoders(fields).items()
            if any(map(may_draw_from_globals, functions))
        ),
        *(
            f"sample_transforms[{number}]"
            for number, transform in enumerate(sample_transforms)
            if may_draw_from_globals(transform)
        ),
        *(f"the transform of {name!r}" for name in draw_from_globals(transforms)),
        *(
            f"stages[{number}]"
            for number, stage in enumerate(stages)
            if getattr(stage, "deterministic", False) is not True
        ),
    ]


def own_decoders(fields: Iterable[Field]) -> dict[str, tuple[Decoder, ...]]:
    """The decoders of the user's own, by field."""
    return {
        field.name: tuple(own.function for own in field.decoders if isinstance(own, OwnDecoder))
        for field in fields
        if any(isinstance(own, OwnDecoder) for own in field.decoders)
    }


def watched_settings(
    fields: Iterable[Field],
    transforms: Mapping[str, Transform],
    sample_transforms: Sequence[SampleTransform],
) -> dict[str, Any]:
    """The settings of a source with these, of which each is watched as by `watched_callable`."""
    return {
        "fields": _with_watched_decoders(fields),
        "transforms": watched(transforms),
        "sample_transforms": watched_of_samples(sample_transforms),
    }


def _with_watched_decoders(fields: Iterable[Field]) -> tuple[Field, ...]:
    """The fields, whose decoders of the user's own may not draw if nothing is seeded for them."""

    def watched_decoder(field: Field, decoder: DecoderChoice | None) -> Any:
        if not isinstance(decoder, OwnDecoder) or may_draw_from_globals(decoder.function):
            return decoder
        called = f"the decoder of {field.name!r}"
        return replace(decoder, function=watched_callable(called, decoder.function))

    return tuple(
        replace(
            field,
            decoder=watched_decoder(field, field.decoder),
            by_suffix=tuple((end, watched_decoder(field, own)) for end, own in field.by_suffix),
        )
        for field in fields
    )
