"""The rows of a mixture in one epoch: each is made as its component's samples are."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.making.rows import EpochRows, RowSettings
from lightning_shards.readers.mixtures.alike import ComponentRow, require_alike, with_one_kind
from lightning_shards.readers.mixtures.readers import ComponentReaders
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import BadSample, Layouts, LoadedBatch, Sample
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.samples.stage_clock import StageClock


@dataclass(frozen=True)
class MixtureRows:
    """Makes the rows of one epoch of a mixture.

    Attributes:
        order: The order of the mixture.
        settings: What all of its rows follow from.
        of_components: Make the rows of each component.
        reader: Makes batches field by field; None if that is not possible.
    """

    order: MixtureOrder
    settings: RowSettings
    of_components: tuple[EpochRows, ...]
    reader: BatchReader | ComponentReaders | None

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self.of_components[0].epoch

    @property
    def clock(self) -> StageClock:
        """Measures the time of each stage."""
        return self.of_components[0].clock

    @property
    def arena(self) -> Arena | None:
        """Memory for the tensors of batches."""
        return self.of_components[0].arena

    @property
    def reads_by_fields(self) -> bool:
        """Whether batches can be made field by field."""
        return self.reader is not None

    def look_up(
        self, ids: Ints, spans: Sequence[tuple[int, int]], weights: Sequence[Sequence[int]]
    ) -> Callable[[int], LoadedBatch]:
        """Find where the members of a stretch lie; what comes back gives its batches by number."""
        components = self.order.components_of(ids[:, 0])
        transforms = [rows.transforms for rows in self.of_components]
        assert self.reader is not None
        if isinstance(self.reader, ComponentReaders):
            self.reader.look_up(ids, spans, transforms, weights, components)
            return self.reader.batch
        stops = accumulate((stop - start for start, stop in spans), initial=0)
        of_batches = [components[start:stop] for start, stop in pairwise(stops)]
        positions = [range(*span) for span in spans]
        self.reader.look_up(ids, positions, transforms[0], weights, of_batches)
        return self.reader.batch

    @contextmanager
    def keeping_globals(self) -> Generator[None]:
        """A context for one batch, which restores the global generators if these may use them."""
        with ExitStack() as stack:
            for rows in self.of_components:
                stack.enter_context(rows.keeping_globals())
            yield

    def between(self, start: int, stop: int) -> tuple[list[Sample], dict[int, BadSample]]:
        """The rows at these positions of the epoch, and the bad samples by row."""
        ids = self.order.at(self.epoch, start, stop)
        numbers: list[int] = self.order.components_of(ids[:, 0]).tolist()
        samples: list[Sample] = []
        bad: dict[int, BadSample] = {}
        for row, ((shard, sample), number) in enumerate(zip(ids.tolist(), numbers, strict=True)):
            made, replaced = self.of_components[number].made(start + row, shard, sample)
            samples.append(made)
            if replaced is not None:
                bad[row] = replaced
        return samples, bad

    def collated(self, samples: list[Sample]) -> tuple[list[Sample], list[str]]:
        """The samples as they are collated, and the fields of their batch in their order.

        Raises:
            ConfigError: Components in it have fields of other names.
            SampleError: The values of a field do not fit into one tensor.
        """
        firsts: list[ComponentRow] = []
        for number, own in _by_component(samples, self.components_of(samples)).items():
            _, names = self.of_components[number].collated(own)
            firsts.append(ComponentRow(self.order.slots.names[number], names, own[0]))
        configured = [field.name for field in self.settings.fields]
        names = in_order(list(firsts[0].fields), configured)
        if self.settings.collation.collate_fn is None and len(firsts) > 1:
            require_alike(firsts)
            samples = with_one_kind(samples, names)
        return samples, names

    def layouts_of(self, samples: Sequence[Sample]) -> Layouts:
        """Of the fields that crops make alike in all components of these samples."""
        numbers = sorted(set(self.components_of(samples)))
        first, *others = (self.of_components[number].transforms.layouts for number in numbers)
        return {
            name: layout
            for name, layout in first.items()
            if all(other.get(name) == layout for other in others)
        }

    def components_of(self, samples: Sequence[Sample]) -> list[int]:
        """The component of each of these samples."""
        shards = np.array([sample["__id__"][0] for sample in samples], np.int64)
        return self.order.components_of(shards).tolist()


def in_order(names: list[str], configured: Sequence[str]) -> list[str]:
    """The names as the first component of the mix has them, and then the others."""
    places = {name: place for place, name in enumerate(configured)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def _by_component(samples: Sequence[Sample], numbers: Sequence[int]) -> dict[int, list[Sample]]:
    """The samples of each component, which come in the order of their numbers."""
    found: dict[int, list[Sample]] = {number: [] for number in sorted(set(numbers))}
    for sample, number in zip(samples, numbers, strict=True):
        found[number].append(sample)
    return found
