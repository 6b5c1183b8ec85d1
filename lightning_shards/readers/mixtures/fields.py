"""The fields of components whose samples are read together, as those of one data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from lightning_shards.readers.ahead.read_ahead import LargeMembers, ReadAhead
from lightning_shards.samples.collate import Column
from lightning_shards.samples.decoders import PIXEL_DECODERS
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import FieldMembers, Ints


@dataclass(frozen=True)
class ComponentFields:
    """The fields of all components, which have the same names.

    Attributes:
        of_components: In the order of the mix, all in one order of names.
        component_of: Gives the component of a shard.
    """

    of_components: Sequence[Sequence[Field]]
    component_of: Callable[[int], int]

    def of_shard(self, shard: int) -> Sequence[Field]:
        """The fields of a shard: they say which members of its samples are read."""
        return self.of_components[self.component_of(shard)]

    @cached_property
    def differing(self) -> dict[str, Sequence[Field]]:
        """By name, of each component: those that differ in more than the suffixes of members."""
        by_name = zip(*self.of_components, strict=True)
        return {of[0].name: of for of in by_name if _differ(of) or _differ_in_gaps(of)}

    @cached_property
    def alike_without_gaps(self) -> frozenset[str]:
        """The names of those of them that differ only where a sample has no such member."""
        return frozenset(name for name, of in self.differing.items() if not _differ(of))


class ComponentColumns(Protocol):
    """Makes the columns of fields that components decode in different ways."""

    @property
    def fields(self) -> ComponentFields:
        """The fields of all components."""
        ...

    def begin(self, components: Sequence[Ints], read: Sequence[str], ahead: ReadAhead) -> None:
        """Go on to the next stretch of an epoch.

        Args:
            components: Of the samples of each batch.
            read: The names of the fields that are read.
            ahead: Reads them.
        """

    def column(self, name: str, batch: range, members: FieldMembers | LargeMembers) -> Column:
        """One field of a batch: of the samples of these numbers in the stretch.

        Raises:
            SampleError: One cannot be decoded, or components make values of different kinds.
        """
        ...


def _differ(fields: Sequence[Field]) -> bool:
    """Whether bytes become other values in these fields."""
    decoded = {(each.decodings, each.classes, _gives_pixel_arrays(each)) for each in fields}
    return len(decoded) > 1


def _gives_pixel_arrays(field: Field) -> bool:
    return field.gives_arrays and not field.decoders.isdisjoint(PIXEL_DECODERS)


def _differ_in_gaps(fields: Sequence[Field]) -> bool:
    """Whether what stands for a member that is missing, or comes from a join, differs."""
    return len({(each.default, each.is_joined) for each in fields}) > 1
