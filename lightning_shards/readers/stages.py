"""The stages of a stream that are the user's own, and those that decode and transform fields."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from lightning_shards.errors import (
    SampleError,
    ShardError,
    TransformError,
    leave_out_own_frames,
)
from lightning_shards.samples.collate import Sample
from lightning_shards.samples.fields import Field
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.transforms import SampleTransforms

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
