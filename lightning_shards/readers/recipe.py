"""The recipe of a data set: how the members of a sample become the values of a row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightning_shards.samples.collate import BatchFormat, PixelLayout, Sample
from lightning_shards.samples.decoders import Decoder, DecoderChoice, OwnDecoder
from lightning_shards.samples.fields import (
    Field,
    decoding_loads_torch,
    optional_names,
    with_arrays,
)
from lightning_shards.samples.generators import (
    SampleSeeds,
    are_same,
    may_draw_from_globals,
    watched,
)
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.transforms import (
    SampleTransform,
    SampleTransforms,
    Transform,
    batch_fields_of,
    layouts_of,
    sample_steps,
)


@dataclass(frozen=True)
class Recipe:
    """How each sample of a split, or of one component of a mixture, becomes a row of a batch.

    Attributes:
        fields: The fields that are taken from each sample.
        transforms: One callable per field that has one.
        sample_transforms: Callables for whole samples, which are applied before `transforms`.
    """

    fields: tuple[Field, ...] = ()
    transforms: Mapping[str, Transform] = field(default_factory=dict[str, Transform])
    sample_transforms: tuple[SampleTransform, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of its fields."""
        return [field.name for field in self.fields]

    @property
    def optional(self) -> frozenset[str]:
        """The names of the fields that samples may lack."""
        return optional_names(self.fields)

    @property
    def layouts(self) -> dict[str, PixelLayout]:
        """Of the fields that crops make."""
        return layouts_of(self.transforms, self.optional)

    @property
    def decoders(self) -> dict[str, tuple[Decoder, ...]]:
        """The decoders of the user's own, by field."""
        return {
            field.name: tuple(own.function for own in field.decoders if isinstance(own, OwnDecoder))
            for field in self.fields
            if any(isinstance(own, OwnDecoder) for own in field.decoders)
        }

    def callables(self, stages: Sequence[object] = ()) -> tuple[tuple[str, object], ...]:
        """The user's decoders, transforms and stages, each with its name in errors."""
        of_samples, transforms = enumerate(self.sample_transforms), self.transforms.items()
        return (
            *(
                (f"the decoder of {name!r}", function)
                for name, functions in self.decoders.items()
                for function in functions
            ),
            *((f"sample_transforms[{number}]", each) for number, each in of_samples),
            *((f"the transform of {name!r}", transform) for name, transform in transforms),
            *((f"stages[{number}]", stage) for number, stage in enumerate(stages)),
        )

    def draw_from_globals(self, stages: Sequence[object] = ()) -> tuple[str, ...]:
        """Those that may draw from the generators of the whole process, as errors call them."""
        own: Any = self.callables()
        drawing = [name for name, function in own if may_draw_from_globals(function)]
        drawing += [
            f"stages[{number}]"
            for number, stage in enumerate(stages)
            if getattr(stage, "deterministic", False) is not True
        ]
        return tuple(dict.fromkeys(drawing))

    def loads_torch(self, *, takes_arrays: bool) -> bool:
        """Whether rows hold tensors; `takes_arrays` says whether pixels may stay arrays."""
        steps = self.transforms, self.sample_transforms
        if takes_arrays:
            return decoding_loads_torch(self.fields, *steps)
        made_by_crops = bool(layouts_of(self.transforms))
        return made_by_crops or decoding_loads_torch(self.fields, *steps, plain=False)

    def with_arrays(self, *, plain: bool) -> "Recipe":
        """The recipe as rows are made by it: some fields give pixels as arrays (`with_arrays`)."""
        steps = self.transforms, self.sample_transforms
        return replace(self, fields=with_arrays(self.fields, *steps, plain=plain))

    def watched(self) -> "Recipe":
        """The recipe, whose callables are watched as by `watched`."""
        return replace(
            self,
            fields=tuple(map(_with_watched_decoders, self.fields)),
            transforms={
                name: watched(f"the transform of field {name!r}", transform)
                for name, transform in self.transforms.items()
            },
            sample_transforms=tuple(
                watched(step.called, step.function) for step in sample_steps(self.sample_transforms)
            ),
        )

    def keyed(self, seeds: SampleSeeds, clock: StageClock | None = None) -> SampleTransforms:
        """Its transforms with the randomness of one epoch."""
        return SampleTransforms(
            self.transforms, seeds, clock, self.sample_transforms, self.decoders, self.optional
        )

    def batch_names(self, rows: Sequence[Sample], batch_format: BatchFormat) -> list[str]:
        """The fields of a batch of these rows in their order; errors as of `batch_fields_of`."""
        return batch_fields_of(rows, self.names, batch_format, self.sample_transforms)

    def makes_alike(self, other: "Recipe") -> bool:
        """Whether rows are made of the same bytes in the same way as by another recipe.

        The suffixes by which members are found may differ. Joins belong to the samples of one
        component, so none of them is like another.
        """
        if len(self.fields) != len(other.fields) or any(field.is_joined for field in self.fields):
            return False
        steps = (self.transforms, self.sample_transforms)
        others = {field.name: field for field in other.fields}
        return steps == (other.transforms, other.sample_transforms) and all(
            field.name in others and decodes_alike(field, others[field.name])
            for field in self.fields
        )


def decodes_alike(field: Field, other: Field) -> bool:
    """Whether the same bytes become the same values in both fields."""
    return (
        field.decodings == other.decodings
        and field.classes == other.classes
        and field.gives_arrays == other.gives_arrays
        and field.is_optional == other.is_optional
        and are_same(field.default, other.default)
        and (field.is_list, field.is_joined) == (other.is_list, other.is_joined)
    )


def _with_watched_decoders(field: Field) -> Field:
    """The field, whose decoders of the user's own may not draw if nothing is seeded for them."""

    def watched_decoder(decoder: DecoderChoice | None) -> Any:
        if not isinstance(decoder, OwnDecoder) or may_draw_from_globals(decoder.function):
            return decoder
        called = f"the decoder of {field.name!r}"
        return replace(decoder, function=watched(called, decoder.function))

    by_suffix = tuple((end, watched_decoder(own)) for end, own in field.by_suffix)
    return replace(field, decoder=watched_decoder(field.decoder), by_suffix=by_suffix)
