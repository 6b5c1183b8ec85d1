"""How many units each component of a mixture has had before any round, while weights change.

A unit is a number of consecutive positions of one component, a round a number of units. Of the
first n units of a stage a component of weight a, of the sum A, has had the nearest whole number to
its share::

    C(n) = (2 n a + A) // (2 A)

The largest component has what the others leave. Weights 5, 2, 1 in rounds of 4 units::

    round                 0   1   2   3
    largest  share 2.5    2   3   2   3
    second         1      1   1   1   1
    third          0.5    1   0   1   0
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import zip_longest
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, StateError, count_of
from lightning_shards.plan.mixtures.weights import check_round, weigh_stage, whole_ratio

RUN_END: Final = 2**62
"""Where the sequence of a run ends: what is counted with its positions stays in int64."""

Weights = Mapping[str, int]
"""The whole weight of each component by name, without a common divisor."""


@dataclass(frozen=True, slots=True)
class WeightChange:
    """Weights from a later point of the run on, as users write them.

    Attributes:
        weights: By name; a component that is left out has none.
        epoch: The epoch at whose beginning they hold first.
        samples: Instead: the samples of the run before them, cut to whole rounds.
        over: In how many equal steps weights go there from those before: both the time and the way
            between the two are cut into as many parts, and the last step is the change itself.
    """

    weights: Mapping[str, float]
    epoch: int | None = None
    samples: int | None = None
    over: int = 1


@dataclass(frozen=True, slots=True)
class MixtureStage:
    """Weights from a round on, one per component."""

    first_round: int
    weights: tuple[int, ...]


@dataclass(frozen=True)
class MixtureSchedule:
    """The weights of all components in the whole run; made by `schedule_mixture`.

    Attributes:
        names: The components, sorted.
        stages: By their first rounds, of which the first is 0. Weights have no common divisor,
            and neighbours differ.
        round_units: Units of a round.
        unit: Samples of a unit.
    """

    names: tuple[str, ...]
    stages: tuple[MixtureStage, ...]
    round_units: int
    unit: int

    def __reduce__(self) -> "tuple[type[MixtureSchedule], tuple[object, ...]]":
        """Pickle the arguments only: workers compute the rest again."""
        return MixtureSchedule, (self.names, self.stages, self.round_units, self.unit)

    @property
    def round_samples(self) -> int:
        """Samples of a round."""
        return self.round_units * self.unit

    def weights_at(self, round_number: int) -> tuple[int, ...]:
        """The weights in a round, one per component."""
        return self.stages[self._stage_at(round_number)].weights

    def counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Units of each component before each of the rounds from first to last, both included.

        int64, shape (last - first + 1, components).
        """
        rows: list[NDArray[np.int64]] = []
        for number in range(self._stage_at(first), self._stage_at(last) + 1):
            stage = self.stages[number]
            is_last = number + 1 == len(self.stages)
            end = last + 1 if is_last else min(last + 1, self.stages[number + 1].first_round)
            begin = max(first, stage.first_round)
            within = self._counts_of(stage.weights, begin - stage.first_round, end - begin)
            rows.append(self._bases[number] + within)
        return np.concatenate(rows)

    def to_text(self) -> str:
        """The stages for a checkpoint: the sample at which each begins, and its weights by name."""
        return json.dumps(_readable(self))

    def require_same(self, saved: object, trained: int) -> None:
        """Check that the samples trained so far were mixed by the stages of this schedule.

        Stages that begin behind them may be others.

        Args:
            saved: What `to_text` gave in the run that was saved, with rounds and units as here.
            trained: Samples of the run that were trained.

        Raises:
            StateError: A stage before differs, or the text is none of a schedule.
        """
        before = [
            [stage for stage in stages if stage[0] < trained]
            for stages in (_parsed(saved), _readable(self))
        ]
        for stages in zip_longest(*before):
            if stages[0] != stages[1]:
                free = -(-trained // self.round_samples) * self.round_samples
                was, now = map(_described, stages)
                raise StateError(
                    f"the checkpoint was made with {was}, this run has {now}; {trained} samples of "
                    f"the run are trained, so weights may change from sample {free} of the run on: "
                    "set the stages before it back, or start anew without the loader's state"
                )

    def names_before(self, trained: int) -> set[str]:
        """The components that have a weight in a stage that begins before these samples."""
        stages = [stage for stage in _readable(self) if stage[0] < trained]
        return {name for _, weights in stages for name in weights}

    def _stage_at(self, round_number: int) -> int:
        return bisect_right(self.stages, round_number, key=lambda stage: stage.first_round) - 1

    @cached_property
    def _bases(self) -> NDArray[np.int64]:
        """Units of each component before each stage, shape (stages, components)."""
        bases = [np.zeros(len(self.names), np.int64)]
        for stage, after in zip(self.stages, self.stages[1:], strict=False):
            length = after.first_round - stage.first_round
            bases.append(bases[-1] + self._counts_of(stage.weights, length, 1)[0])
        return np.stack(bases)

    def _counts_of(self, weights: tuple[int, ...], first: int, rows: int) -> NDArray[np.int64]:
        """Units of each component since a stage began, before each of `rows` rounds of it.

        int64, shape (rows, components).
        """
        total, units = sum(weights), first * self.round_units
        # C(n) at the first round and its growth by a round, as whole numbers and 2 A-ths. Such
        # parts are Python's integers where sums of them could leave int64: weights have any size.
        starts = [divmod(2 * units * weight + total, 2 * total) for weight in weights]
        steps = [divmod(2 * self.round_units * weight, 2 * total) for weight in weights]
        dtype = np.int64 if 2 * total * (rows + 1) < 2**63 else np.object_
        numbers = np.arange(rows, dtype=np.int64)[:, np.newaxis]
        wholes, parts = zip(*starts, strict=True)
        more_wholes, more_parts = zip(*steps, strict=True)
        first_parts, step_parts = (
            cast("Any", np.array(each, dtype)) for each in (parts, more_parts)
        )
        carried = first_parts + numbers * step_parts
        counts = np.array(wholes, np.int64) + numbers * np.array(more_wholes, np.int64)
        counts += np.array(carried // (2 * total), np.int64)
        largest = weights.index(max(weights))
        counts[:, largest] += units + numbers[:, 0] * self.round_units - counts.sum(axis=1)
        return counts


def schedule_mixture(
    weights: Weights,
    changes: Sequence[WeightChange] = (),
    *,
    round_units: int,
    unit: int = 1,
    epoch_samples: int,
) -> MixtureSchedule:
    """The weights of a run that begins with `weights`, with each change one after the other.

    Args:
        weights: Of all components, also of those that have none in the beginning.
        changes: In the order in which they take effect.
        round_units: Units of a round.
        unit: Samples of a unit.
        epoch_samples: Samples of an epoch.

    Raises:
        ConfigError: A round that is too short for its weights, or changes out of order.
    """
    if unit < 1:
        raise ConfigError(f"unit must be at least 1 sample, got {unit}; set it right")
    names = tuple(sorted(weights))
    check_round(round_units, weights)
    stages = [MixtureStage(0, tuple(weights[name] for name in names))]
    before = stages[0]
    for change in changes:
        start = _first_sample(change, epoch_samples)
        whole = weigh_stage(weights, change.weights)
        stage = MixtureStage(start // (round_units * unit), tuple(whole[name] for name in names))
        for step in _steps(before, stage, change.over, round_units * unit):
            by_name = dict(zip(names, step.weights, strict=True))
            sample = step.first_round * round_units * unit
            check_round(round_units, by_name, f" from sample {sample} of the run on")
            if step.weights != stages[-1].weights:
                stages.append(step)
        before = stage
    return MixtureSchedule(names, tuple(stages), round_units, unit)


def _first_sample(change: WeightChange, epoch_samples: int) -> int:
    if (change.epoch is None) == (change.samples is None):
        raise ConfigError(
            "a stage begins either at an epoch or at samples of the run, got "
            f"epoch={change.epoch} and samples={change.samples}; give one of them"
        )
    start = change.samples if change.samples is not None else (change.epoch or 0) * epoch_samples
    if start >= RUN_END:
        of_epoch = f"epoch={change.epoch} of {epoch_samples} samples each"
        raise ConfigError(
            "a stage must begin before sample 2**62 of the run, got "
            f"{of_epoch if change.samples is None else f'samples={start}'}; let it begin earlier"
        )
    return start


def _steps(
    before: MixtureStage, stage: MixtureStage, over: int, round_samples: int
) -> list[MixtureStage]:
    """The stages that lead from one to another, the other one last."""
    rounds = stage.first_round - before.first_round
    if stage.first_round == before.first_round == 0:
        raise ConfigError(
            f"a stage begins in the first round of the run, which has {round_samples} samples, "
            "where the components' own weights hold; write its weights there, or let it begin later"
        )
    if rounds < 1:
        raise ConfigError(
            f"stages must begin one after the other, by a round of {round_samples} samples at "
            f"least, got one at sample {stage.first_round * round_samples} of the run behind one "
            f"at {before.first_round * round_samples}; put them in order"
        )
    if not 1 <= over <= rounds:
        raise ConfigError(
            f"over must be from 1 to the {count_of(rounds, 'round')} since the stage before, got "
            f"{over}; take fewer steps or let the stage begin later"
        )
    totals = sum(before.weights), sum(stage.weights)
    shares = [
        (Fraction(old, totals[0]), Fraction(new, totals[1]))
        for old, new in zip(before.weights, stage.weights, strict=True)
    ]
    return [
        MixtureStage(
            before.first_round + rounds * number // over,
            whole_ratio([old + (new - old) * Fraction(number, over) for old, new in shares]),
        )
        for number in range(1, over + 1)
    ]


_Readable = list[Any]
"""The first sample of a stage, and its weights by name where they are not 0."""


def _readable(schedule: MixtureSchedule) -> list[_Readable]:
    return [
        [
            stage.first_round * schedule.round_samples,
            {
                name: weight
                for name, weight in zip(schedule.names, stage.weights, strict=True)
                if weight
            },
        ]
        for stage in schedule.stages
    ]


def _parsed(saved: object) -> list[_Readable]:
    try:
        stages = cast("list[Any]", json.loads(saved)) if isinstance(saved, str) else []
        parsed = [[int(start), dict(weights)] for start, weights in stages]
    except (ValueError, TypeError, OverflowError, RecursionError):
        parsed = []
    if not parsed:
        raise StateError(
            f"the stages in the checkpoint must be those of a mixture, got {saved!r:.100}; it is "
            "damaged: resume from another checkpoint, or start anew without this one's state"
        )
    return parsed


def _described(stage: _Readable | None) -> str:
    if stage is None:
        return "no other stage"
    weights = ", ".join(f"{name}={weight}" for name, weight in stage[1].items())
    return f"the weights {weights} from sample {stage[0]} of the run on"
