"""Which component of a mixture stands at each position, and its how many-th sample that is.

A round has so many units of each component as `MixtureSchedule` says, and random words deal them
to its slots. Nothing is asked of the components themselves: weights, seed and names are all that
it depends on. Weights web=5 and labels=3 in rounds of 8::

    slots         w w l w l l w w | l w w w l w w l
    web           0 1   2     3 4 |   5 6 7   8 9
    labels            0   1 2     | 3       4     5

Components are dealt in the order of their names: neither the order in which a user names them nor
a component without weight changes anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.plan.draws import Purpose, random_words, stable_order
from lightning_shards.plan.mixture_schedule import MixtureSchedule
from lightning_shards.plan.order import remembered, require_range

_Ints = NDArray[np.int64]

_DEALT_AT_ONCE: Final = 16_384
"""Units dealt together where rounds are shorter; 12 bytes each."""


@dataclass(frozen=True)
class MixtureSlots:
    """The components at all positions of a run.

    A *run position* counts samples from the beginning of the run: position p of epoch e is run
    position e x `epoch_samples` + p.
    Components have the numbers of `names`. Positions behind the end of an epoch repeat it.

    Attributes:
        names: The components in the order in which users name them.
        schedule: Their weights.
        seed: 0 <= seed < 2**64.
        epoch_samples: Samples of an epoch, whole rounds.
    """

    names: tuple[str, ...]
    schedule: MixtureSchedule
    seed: int
    epoch_samples: int

    def __post_init__(self) -> None:
        assert self.schedule.names == tuple(sorted(self.names))  # the build sees to both
        assert self.epoch_samples % self.schedule.round_samples == 0 < self.epoch_samples

    def __reduce__(self) -> "tuple[type[MixtureSlots], tuple[object, ...]]":
        """Pickle the arguments only: workers compute the rest again."""
        return MixtureSlots, (self.names, self.schedule, self.seed, self.epoch_samples)

    def run_positions(self, epoch: int, spans: Sequence[tuple[int, int]]) -> list[_Ints]:
        """The run positions of spans of positions, int64, in pieces that rise.

        Raises:
            ConfigError: Numbers that no epoch or range has.
        """
        for span in spans:
            require_range(self.epoch_samples, epoch, *span)
        # starts, stops: shape (spans,); positions, run_positions: one span after the other.
        starts, stops = np.array(spans, np.int64).T
        ends = np.cumsum(stops - starts, dtype=np.int64)
        positions = np.arange(int(ends[-1])) + np.repeat(stops - ends, stops - starts)
        run_positions = epoch * self.epoch_samples + positions % self.epoch_samples
        return np.split(run_positions, np.flatnonzero(np.diff(run_positions) <= 0) + 1)

    def look_up(self, run_positions: _Ints) -> tuple[NDArray[np.int32], _Ints]:
        """The component at each of these rising run positions, and the number of the sample.

        Returns:
            int32 and int64, shape (run_positions,). Samples of a component are numbered over the
            whole run: those at positions that follow each other have consecutive numbers.
        """
        unit, at_once = self.schedule.unit, self._rounds_dealt * self.schedule.round_units
        units, offsets = np.divmod(run_positions, unit)
        components = np.empty(len(run_positions), np.int32)
        samples = np.empty(len(run_positions), np.int64)
        start = 0
        while start < len(run_positions):
            group = int(units[start]) // at_once
            stop = int(np.searchsorted(units, (group + 1) * at_once))
            of_components, of_units = self._dealt(group)
            slots = units[start:stop] - group * at_once
            components[start:stop], samples[start:stop] = of_components[slots], of_units[slots]
            start = stop
        return components, samples * unit + offsets

    def components(self, epoch: int, start: int, stop: int) -> _Ints:
        """The component at each of these positions, by its number in `names`.

        int64, shape (stop - start,).

        Raises:
            ConfigError: Numbers that no epoch or range has.
        """
        pieces = self.run_positions(epoch, [(start, stop)])
        return np.concatenate([self.look_up(piece)[0] for piece in pieces], dtype=np.int64)

    def before(self, run_position: int) -> _Ints:
        """Samples of each component before a run position, int64, shape (components,)."""
        round_units, unit = self.schedule.round_units, self.schedule.unit
        units, offset = divmod(run_position, unit)
        round_number, slot = divmod(units, round_units)
        before = self.schedule.counts(round_number, round_number)[0][self._ranks] * unit
        if slot or offset:
            group, round_in_group = divmod(round_number, self._rounds_dealt)
            dealt = self._dealt(group)[0][round_in_group * round_units :][: slot + 1]
            before += unit * np.bincount(dealt[:slot], minlength=len(self.names))
            before[dealt[slot]] += offset
        return before

    def weights_at(self, run_position: int) -> tuple[int, ...]:
        """The whole weight of each component at a run position."""
        number = self.schedule.stage_at(run_position // self.schedule.round_samples)
        return tuple(self.schedule.stages[number].weights[rank] for rank in self._ranks)

    @cached_property
    def _ranks(self) -> list[int]:
        """Where each component is in the order of names."""
        return [self.schedule.names.index(name) for name in self.names]

    @cached_property
    def _rounds_dealt(self) -> int:
        return max(1, _DEALT_AT_ONCE // self.schedule.round_units)

    @remembered()
    def _dealt(self, group: int) -> tuple[NDArray[np.int32], _Ints]:
        """The component and the number of each of the units that are dealt together."""
        # counts: units of each component before each round, shape (rounds + 1, components).
        # words, slots, dealt, components: one entry per unit, shape (rounds, units of a round).
        rounds, units = self._rounds_dealt, self.schedule.round_units
        counts = self.schedule.counts(group * rounds, (group + 1) * rounds)
        span = (group * rounds * units, (group + 1) * rounds * units)
        words = random_words(Purpose.MIX_SLOTS, (self.seed, 0), span)
        slots = stable_order(words.reshape(rounds, units))
        # The component of each column of counts, and then of each unit before it is dealt.
        by_name = np.argsort(self._ranks).astype(np.int32)
        dealt = np.repeat(np.tile(by_name, rounds), np.diff(counts, axis=0).ravel())
        components = np.empty((rounds, units), np.int32)
        np.put_along_axis(components, slots, dealt.reshape(rounds, units), axis=1)
        # Over rounds, too, the units of a component are numbered in the order of their slots.
        components, numbers = components.ravel(), np.empty(rounds * units, np.int64)
        for component, begin, end in zip(by_name, counts[0], counts[-1], strict=True):
            numbers[np.flatnonzero(components == component)] = np.arange(begin, end)
        return components, numbers
