"""What a checkpoint says of a mixture, and the check that a resumed run may go on with another."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import StateError
from lightning_shards.plan.draws import ORDER_VERSION
from lightning_shards.plan.order import ENDLESS, Order
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
        return {
            "order_version": ORDER_VERSION,
            "seed": self.slots.seed,
            "sampling": "mixture",
            "dataset_size": self.slots.epoch_samples,
            "round": self.slots.schedule.round_units,
            "unit": self.slots.schedule.unit,
            "stages": self.slots.schedule.to_text(),
            **{f"component_{name}": text for name, text in self.components.items()},
        }

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
        schedule = self.slots.schedule
        used = schedule.names_before(trained)
        for name, now in self.values().items():
            was, component = saved.get(name), name.removeprefix("component_")
            if name == "stages":
                schedule.require_same(was, trained)
            elif name != component:
                if component in used and was != now:
                    raise StateError(_other_component(component, str(was), str(now)))
            elif was != now:
                about_rounds = (
                    f". An epoch is cut to whole rounds, of {schedule.round_samples} samples in "
                    "this run: weights and `round` change it as well"
                )
                raise StateError(
                    f"the checkpoint was made with {name}={was!r:.100}, this run has {now!r}; set "
                    "it back to resume, or start anew without the loader's state"
                    f"{about_rounds if name == 'dataset_size' else ''}"
                )


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
    fingerprint: str

    @property
    def pass_samples(self) -> int:
        """Samples of its sequence before the next epoch of its order begins."""
        is_endless = self.order.identity()["sampling"] == "resampled"
        return ENDLESS if is_endless else self.order.samples

    def passes(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """These samples of its sequence, pass by pass: its number, and first and last position."""
        while begin < end:
            number, start = divmod(begin, self.pass_samples)
            stop = min(start + end - begin, self.pass_samples)
            yield number, start, stop
            begin += stop - start

    def ids_of(self, samples: _Ints) -> _Ints:
        """The ids of rising samples of its sequence, with its own numbers of shards."""
        ends = [*(np.flatnonzero(np.diff(samples) != 1) + 1).tolist(), len(samples)]
        spans: dict[int, list[tuple[int, int]]] = {}
        for first, end in zip([0, *ends], ends, strict=False):
            for number, start, stop in self.passes(int(samples[first]), int(samples[end - 1]) + 1):
                spans.setdefault(number, []).append((start, stop))
        return np.concatenate([self.order.at_spans(*each) for each in spans.items()])

    def describe(self) -> str:
        """All that its sequence depends on, in words for a checkpoint."""
        identity = {"shards": self.fingerprint, "num_shards": self.num_shards}
        identity |= {"samples": self.order.samples} | self.order.identity()
        return " ".join(f"{name}={value}" for name, value in identity.items())


@dataclass(frozen=True)
class MixtureOrder(Order):
    """The samples of several data sets in one order.

    Shards are numbered over all components, in the order of `mix`. Positions from `samples` on
    repeat those of the epoch.

    Attributes:
        mix: The components, with the names of `slots`.
        slots: Where in the sequence each of them stands.
    """

    mix: tuple[MixtureComponent, ...]
    slots: MixtureSlots

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
        return np.concatenate([*map(self._ids_at, self.slots.run_positions(epoch, spans))])

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
        for lap in self.slots.run_positions(epoch, [(start, stop)]):
            if not lap.size:
                break
            begins, ends = self.slots.before(int(lap[0])), self.slots.before(int(lap[-1]) + 1)
            for number, weight in enumerate(self.slots.weights_at(int(lap[0]))):
                begin, end = int(begins[number]), int(ends[number])
                end = max(end, begin + 1) if weight else end
                for pass_number, first, last in self.mix[number].passes(begin, end):
                    ids = self.mix[number].order.footing(pass_number, first, last)
                    ids[:, 0] += self._first_shards[number]
                    blocks.append(ids)
        return np.concatenate(blocks)

    def identity(self) -> dict[str, int | str]:
        """The version of the arithmetic, and all that the order depends on beside the shards."""
        return self.mixture_identity.values()

    @property
    def mixture_identity(self) -> MixtureIdentity:
        """What a checkpoint says of it."""
        return MixtureIdentity(self.slots, {each.name: each.describe() for each in self.mix})

    @cached_property
    def _first_shards(self) -> list[int]:
        """The shards of the components before each of them."""
        return [0, *accumulate(component.num_shards for component in self.mix)][:-1]

    def _ids_at(self, run_positions: _Ints) -> _Ints:
        """The ids at rising run positions."""
        # by_component: where each component stands, ascending. sources: where each id is among
        # those of all components, one component after the other.
        components, samples = self.slots.look_up(run_positions)
        by_component = [np.flatnonzero(components == number) for number in range(len(self.mix))]
        ids = [np.empty((0, 2), np.int64)]
        for number, own in enumerate(by_component):
            if own.size:
                ids.append(self.mix[number].ids_of(samples[own]))
                ids[-1][:, 0] += self._first_shards[number]
        sources = np.empty(len(run_positions), np.int64)
        sources[np.concatenate(by_component)] = np.arange(len(run_positions))
        return np.concatenate(ids).take(sources, axis=0)


def component_seed(seed: int, name: str) -> int:
    """The seed of a component's own order, from the seed of the run and its name alone.

    No other component moves it, and the same shards under two names have two orders.

    >>> component_seed(0, "web")
    2568157234618764885
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little")
