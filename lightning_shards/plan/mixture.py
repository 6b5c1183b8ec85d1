"""What a checkpoint says of a mixture, and the check that a resumed run may go on with another."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_shards.errors import ConfigError, PlanError, StateError
from lightning_shards.plan.draws import ORDER_VERSION
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.mixture_schedule import RUN_END
from lightning_shards.plan.order import Order
from lightning_shards.plan.slots import MixtureSlots


@dataclass(frozen=True, slots=True)
class MixtureIdentity:
    """All that the samples of a mixture depend on, as plain values.

    Attributes:
        slots: Where in the sequence each component stands.
        components: By name, all that the component's own samples depend on, in words.
    """

    slots: MixtureSlots
    components: Mapping[str, str]

    def values(self) -> dict[str, int | str]:
        """The values by name, for a checkpoint."""
        components = {f"component_{name}": text for name, text in self.components.items()}
        return self._fixed() | {"stages": self.slots.schedule.to_text()} | components

    def require_resumable(self, saved: Mapping[str, object], trained: int) -> None:
        """Check that a run that was saved with these values may go on with this mixture.

        Stages that begin behind the trained samples may be others, and so may components that have
        no weight before.

        Args:
            saved: The `values` of the mixture that gave the trained samples.
            trained: How many of the run these are: all epochs before the cursor's, and its samples.

        Raises:
            StateError: They are not the first ones of this mixture.
        """
        for name, value in self._fixed().items():
            if saved.get(name) != value:
                raise StateError(
                    f"the checkpoint was made with {name}={saved.get(name)!r:.100}, this run has "
                    f"{value!r}; set it back to resume, or start anew without the loader's state"
                    f"{self._about_rounds() if name == 'dataset_size' else ''}"
                )
        self.slots.schedule.require_same(saved.get("stages"), trained)
        used = self.slots.schedule.names_before(trained)
        for name, now in self.components.items():
            was = saved.get(f"component_{name}")
            if name in used and was != now:
                raise StateError(_other_component(name, str(was), now))

    def _about_rounds(self) -> str:
        rounds = f"{self.slots.schedule.round_samples} samples in this run"
        return (
            f". An epoch is cut to whole rounds, of {rounds}: weights and `round` change it as well"
        )

    def _fixed(self) -> dict[str, int | str]:
        """What cannot change while a run goes on."""
        return {
            "order_version": ORDER_VERSION,
            "seed": self.slots.seed,
            "sampling": "mixture",
            "dataset_size": self.slots.epoch_samples,
            "round": self.slots.schedule.round_units,
            "unit": self.slots.schedule.unit,
        }


def _other_component(name: str, was: str, now: str) -> str:
    """What to say of a component that is another one now, by the values that differ."""
    saved, given = was.split(), now.split()
    before = " ".join(word for word in saved if word not in given) or "no more"
    after = " ".join(word for word in given if word not in saved) or "no more"
    is_filtered = any(word.startswith("kept=") for word in f"{before} {after}".split())
    what = "its `keep` and `exclude`, and what is in the lists," if is_filtered else "it"
    return (
        f"the checkpoint was made with the component {name!r} of {before:.200}, this run has "
        f"{after}; set {what} back to resume, or give what is new another name and a weight in a "
        "stage that is still to come"
    )


_Ints = NDArray[np.int64]

_SAMPLES_AT_ONCE: Final = 2**18
"""Samples looked up together, of which each takes some 30 bytes."""


@dataclass(frozen=True, slots=True)
class WeightStage:
    """A stretch of the run in which weights stay the same.

    Attributes:
        begin: The samples of the run before it.
        end: The samples of the run before the next one; None: it is the last one.
        weights: The whole weight of each component.
    """

    begin: int
    end: int | None
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The least and the most samples of each component in the batches of some steps.

    Attributes:
        least: By component.
        most: By component.
        steps: How many steps these are. They are the first ones of those that were asked for.
        is_complete: Whether the numbers hold for all of those.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]
    steps: int
    is_complete: bool


def stages_of(slots: MixtureSlots) -> list[WeightStage]:
    """The stages of a mixture from the beginning of its run on."""
    schedule = slots.schedule
    begins = [stage.first_round * schedule.round_samples for stage in schedule.stages]
    ends = [*begins[1:], None]
    return [
        WeightStage(begin, end, slots.weights_at(begin))
        for begin, end in zip(begins, ends, strict=True)
    ]


def count_batches(
    slots: MixtureSlots,
    plan: EpochPlan,
    stage: WeightStage,
    most_samples: int,
    *,
    by_rank: bool,
    steps: int | None = None,
) -> BatchCounts | None:
    """The least and the most samples of each component in a step, or in a rank's batch.

    The steps are those that begin in the stage; the last one may reach into the next stage. Where
    each batch is of rounds that hold the weights exactly, arithmetic answers for all of them. Else
    batches are counted one by one, repeats included, and only the first ones of a long stage.

    Args:
        slots: The mixture.
        plan: A whole epoch of it.
        stage: One of `stages_of`, or a part of it.
        most_samples: How many samples may be looked up; one step is counted in any case.
        by_rank: Whether a batch is what one rank takes of a step.
        steps: Steps of an epoch under a limit; None: those of the plan.

    Returns:
        None if no step begins in the stage.
    """
    in_epoch = plan.steps if steps is None else steps
    first = _steps_before(plan, in_epoch, stage.begin)
    last = None if stage.end is None else _steps_before(plan, in_epoch, stage.end)
    if first == last or not in_epoch:
        return None
    counted = range(first, first + max(1, most_samples // plan.global_batch))
    ranges = [counted if last is None else range(first, min(counted.stop, last))]
    is_complete = ranges[0].stop == last
    if not is_complete and _is_exact(slots, plan, stage, by_rank):
        ends = [] if last is None else [range(last - 1, last)]
        ranges, is_complete = [range(first, first + 1), *ends], True
    pieces = (each for part in ranges for each in _count(slots, plan, in_epoch, part, by_rank))
    least, most = _least_and_most(pieces)
    return BatchCounts(least, most, sum(map(len, ranges)), is_complete)


def samples_of_epoch(slots: MixtureSlots, epoch: int) -> _Ints:
    """Samples of each component in an epoch, int64, shape (components,)."""
    size = slots.epoch_samples
    return slots.before((epoch + 1) * size) - slots.before(epoch * size)


def left_out_of_epoch(
    slots: MixtureSlots, plan: EpochPlan, epoch: int, steps: int | None = None
) -> _Ints:
    """Samples of each component at the end of an epoch that no step serves.

    int64, shape (components,). They are skipped in the passes of their components as well. `steps`
    are those of an epoch under a limit.
    """
    served = plan.trained(plan.steps if steps is None else steps)
    left_out = slots.components(epoch, served, plan.samples)
    return np.bincount(left_out, minlength=len(slots.names))


def sizes_without_drop(slots: MixtureSlots, plan: EpochPlan) -> tuple[int, ...]:
    """The sizes of an epoch next to that of the plan that are whole rounds and whole steps.

    >>> from lightning_shards.plan.mixture_schedule import schedule_mixture
    >>> schedule = schedule_mixture({"web": 5, "labels": 3}, round_units=8, epoch_samples=80)
    >>> slots = MixtureSlots(("web", "labels"), schedule, seed=0, epoch_samples=80)
    >>> sizes_without_drop(slots, EpochPlan(80, batch_size=6, world_size=2, remainder="drop"))
    (72, 96)
    """
    common = lcm(slots.schedule.round_samples, plan.global_batch)
    lower = plan.samples // common * common
    return tuple(size for size in (lower, lower + common) if size)


def _steps_before(plan: EpochPlan, steps: int, run_position: int) -> int:
    """How many steps of the run begin before this position, where each epoch has this many."""
    epoch, position = divmod(run_position, plan.samples)
    return epoch * steps + bisect_left(range(steps), position, key=plan.trained)


def _is_exact(slots: MixtureSlots, plan: EpochPlan, stage: WeightStage, by_rank: bool) -> bool:
    """Whether all batches are whole rounds, and each round holds the weights exactly."""
    sizes, schedule = _sizes_of_all_steps(plan), slots.schedule
    if sizes is None or plan.padded:
        return False
    cut = sizes if by_rank else (sum(sizes),)
    is_whole = all(size % schedule.round_samples == 0 for size in cut)
    return is_whole and schedule.round_units % sum(stage.weights) == 0


def _least_and_most(pieces: Iterable[_Ints]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By component, over the batches of all pieces."""
    least, most = zip(*((each.min(axis=0), each.max(axis=0)) for each in pieces), strict=True)
    return tuple(np.min(least, axis=0).tolist()), tuple(np.max(most, axis=0).tolist())


def _count(
    slots: MixtureSlots, plan: EpochPlan, in_epoch: int, steps: range, by_rank: bool
) -> Iterator[_Ints]:
    """Samples of each component in the batches of these steps of the run, in pieces.

    Each is int64, of shape (batches, components); `in_epoch` are the steps of each epoch.
    """
    at_once = max(1, _SAMPLES_AT_ONCE // plan.global_batch)
    first = steps.start
    while first < steps.stop:
        epoch, step = divmod(first, in_epoch)
        last = min(first + at_once, steps.stop, (epoch + 1) * in_epoch)
        own = range(step, step + last - first)
        components = slots.components(epoch, plan.span(own[0])[0], plan.span(own[-1])[1])
        # sizes: samples of each batch, one behind the other as the components are.
        sizes = _sizes(plan, own, by_rank)
        starts = np.cumsum(sizes) - sizes
        of_each = [
            np.add.reduceat(components == number, starts, dtype=np.int64)
            for number in range(len(slots.names))
        ]
        yield np.stack(of_each, axis=1)
        first = last


def _sizes(plan: EpochPlan, steps: range, by_rank: bool) -> _Ints:
    """Samples of the batches of these steps of an epoch, step by step and rank by rank."""
    sizes_of_all = _sizes_of_all_steps(plan)
    if sizes_of_all is not None:
        return np.tile(sizes_of_all if by_rank else (sum(sizes_of_all),), len(steps))
    sizes = (plan.sizes(step) for step in steps)
    return np.array([size for each in sizes for size in (each if by_rank else (sum(each),))])


def _sizes_of_all_steps(plan: EpochPlan) -> tuple[int, ...] | None:
    """The batch sizes of the ranks, repeats included; None if they differ between steps."""
    sizes = plan.sizes(0)
    return sizes if sizes == plan.sizes(plan.steps - 1) else None


_MAX_UNWANTED: Final = 4
"""Up to this many times the wanted samples of a component are looked up to save a call a span."""


@dataclass(frozen=True, slots=True)
class MixtureComponent:
    """One data set of a mixture.

    Attributes:
        name: An identifier. It keys the order, by `component_seed`.
        order: Its samples; its shards are numbered from 0. An epoch of this order is a pass, and
            a ``resampled`` component stays in its first one.
        num_shards: Number of its shards.
        fingerprint: What a checkpoint knows its shards by.
    """

    name: str
    order: Order
    num_shards: int
    fingerprint: str = ""

    def __post_init__(self) -> None:
        """Refuse a component without samples.

        Raises:
            PlanError: It has none.
        """
        require_samples(self.name, self.order.samples)

    @property
    def pass_samples(self) -> int:
        """Samples of its sequence before the next epoch of its order begins."""
        is_endless = self.order.identity()["sampling"] == "resampled"
        return RUN_END if is_endless else self.order.samples

    def passes(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """These samples of its sequence, pass by pass: its number, and first and last position."""
        while begin < end:
            number, start = divmod(begin, self.pass_samples)
            stop = min(start + end - begin, self.pass_samples)
            yield number, start, stop
            begin += stop - start

    def describe(self) -> str:
        """All that its sequence depends on, in words for a checkpoint."""
        identity = {"shards": self.fingerprint} if self.fingerprint else {}
        identity |= {"num_shards": self.num_shards, "samples": self.order.samples}
        identity |= self.order.identity()
        return " ".join(f"{name}={value}" for name, value in identity.items())


@dataclass(frozen=True)
class MixtureOrder(Order):
    """The samples of several data sets in one order.

    Shards are numbered over all components, in the order of `mix`. Positions from `samples` on
    repeat those of the epoch.

    Attributes:
        mix: The components.
        slots: Where in the sequence each of them stands.
    """

    mix: tuple[MixtureComponent, ...]
    slots: MixtureSlots

    def __post_init__(self) -> None:
        """Refuse slots of other components.

        Raises:
            ConfigError: The names differ.
        """
        names = tuple(component.name for component in self.mix)
        if names != self.slots.names:
            raise ConfigError(
                f"a mixture and its slots must name the same components, got {', '.join(names)} "
                f"and {', '.join(self.slots.names)}; make the slots from the components' names"
            )

    def __reduce__(self) -> "tuple[type[MixtureOrder], tuple[object, ...]]":
        """Pickle the arguments only: workers compute the rest again."""
        return MixtureOrder, (self.mix, self.slots)

    @property
    def samples(self) -> int:
        """Samples of an epoch; among them a sample may come several times, or not at all."""
        return self.slots.epoch_samples

    def at(self, epoch: int, start: int, stop: int) -> _Ints:
        """The sample ids at positions start to stop of the epoch: shard, and sample in it.

        int64, shape (stop - start, 2).

        Raises:
            ConfigError: Numbers that no epoch or range has.
        """
        return self.at_spans(epoch, [(start, stop)])

    def at_spans(self, epoch: int, spans: Sequence[tuple[int, int]]) -> _Ints:
        """The results of `at` for each of these spans, concatenated; spans are in rising order."""
        ids = map(self._ids_at, self.slots.run_positions(epoch, spans))
        return np.concatenate([np.empty((0, 2), np.int64), *ids])

    def components_of(self, shards: ArrayLike) -> _Ints:
        """The component of each of these shards, by its number in `mix`."""
        numbers = np.searchsorted(self._first_shards, shards, side="right") - 1
        return numbers.astype(np.int64)

    def following(self, epoch: int, position: int, count: int) -> _Ints:
        """Ids that may stand for a bad sample here: the next ones of the same component.

        int64, shape (count, 2). They are of the pass of the bad sample; behind its end they come
        from its beginning.

        Raises:
            ConfigError: Numbers that no epoch or range has.
        """
        (run_positions,) = self.slots.run_positions(epoch, [(position, position + 1)])
        components, samples = self.slots.look_up(run_positions)
        number = int(components[0])
        pass_number, start = divmod(int(samples[0]), self.mix[number].pass_samples)
        ids = self.mix[number].order.following(pass_number, start, count)
        ids[:, 0] += self._first_shards[number]
        return ids

    def footing(self, epoch: int, start: int, stop: int) -> _Ints:
        """The ids of the blocks at which all components stand at these positions.

        int64, shape (n, 2). A component with weight that has no sample there comes with the block
        of its next one. So the blocks stay the same until one component leaves its own.

        Raises:
            ConfigError: Numbers that no epoch or range has.
        """
        blocks = [np.empty((0, 2), np.int64)]
        for first, last in self.slots.bounds(epoch, start, stop):
            begins, ends = self.slots.before(first), self.slots.before(last)
            for number, weight in enumerate(self.slots.weights_at(first)):
                begin, end = int(begins[number]), int(ends[number])
                blocks += self._blocks_of(number, begin, max(end, begin + 1) if weight else end)
        return np.concatenate(blocks)

    def identity(self) -> dict[str, int | str]:
        """The version of the arithmetic, and all that the order depends on beside the shards."""
        return self.mixture_identity.values()

    def require_resumable(self, saved: Mapping[str, object], trained: int) -> None:
        """Check that a run whose order had this identity may go on with this order.

        Args:
            saved: The `identity` of the order that gave the trained samples.
            trained: As of `MixtureIdentity.require_resumable`.

        Raises:
            StateError: They are not the first ones of this order.
        """
        self.mixture_identity.require_resumable(saved, trained)

    @property
    def mixture_identity(self) -> MixtureIdentity:
        """What a checkpoint says of it."""
        return MixtureIdentity(self.slots, {each.name: each.describe() for each in self.mix})

    @cached_property
    def _first_shards(self) -> list[int]:
        """The shards of the components before each of them."""
        shards = [component.num_shards for component in self.mix]
        return [sum(shards[:number]) for number in range(len(shards))]

    def _ids_at(self, run_positions: _Ints) -> _Ints:
        """The ids at rising run positions."""
        # own: where one component stands, ascending; by_component: where its part of ids goes.
        components, samples = self.slots.look_up(run_positions)
        ids: list[_Ints] = []
        by_component: list[_Ints] = []
        for number, component in enumerate(self.mix):
            own = np.flatnonzero(components == number)
            if own.size:
                ids.append(_ids_of(component, samples[own]))
                ids[-1][:, 0] += self._first_shards[number]
                by_component.append(own)
        sources = np.empty(len(run_positions), np.int64)
        sources[np.concatenate(by_component)] = np.arange(len(run_positions))
        return np.concatenate(ids).take(sources, axis=0)

    def _blocks_of(self, number: int, begin: int, end: int) -> Iterator[_Ints]:
        """The ids of the blocks of a component in which these samples are, pass by pass."""
        component = self.mix[number]
        for pass_number, start, stop in component.passes(begin, end):
            blocks = component.order.footing(pass_number, start, stop)
            blocks[:, 0] += self._first_shards[number]
            yield blocks


def require_samples(name: str, samples: int) -> None:
    """Refuse a component without samples.

    Raises:
        PlanError: It has none.
    """
    if samples < 1:
        raise PlanError(
            f"component {name!r} has {samples} samples; check its shards and the counts in their "
            "index, or remove it from the mix"
        )


def component_seed(seed: int, name: str) -> int:
    """The seed of a component's own order, from the seed of the run and its name alone.

    No other component moves it, and the same shards under two names have two orders.

    >>> component_seed(0, "web")
    2568157234618764885
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little")


def _ids_of(component: MixtureComponent, samples: _Ints) -> _Ints:
    """The ids of rising sample numbers of one component, which numbers its own shards."""
    first, behind = int(samples[0]), int(samples[-1]) + 1
    if behind - first <= _MAX_UNWANTED * len(samples):
        ids = [component.order.at(*part) for part in component.passes(first, behind)]
        return np.concatenate(ids).take(samples - first, axis=0)
    begins = [0, *(np.flatnonzero(np.diff(samples) != 1) + 1).tolist()]
    spans_of_pass: dict[int, list[tuple[int, int]]] = {}
    for first, last in zip(begins, [*begins[1:], 0], strict=True):
        begin, end = int(samples[first]), int(samples[last - 1]) + 1
        for pass_number, start, stop in component.passes(begin, end):
            spans_of_pass.setdefault(pass_number, []).append((start, stop))
    return np.concatenate([component.order.at_spans(*each) for each in spans_of_pass.items()])
