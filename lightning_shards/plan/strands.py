"""The order in which each node reads its own runs, the same ones in every epoch.

Each run is of one strand for ever, and the strands take turns in the sequence of an epoch. If a
turn is as long as the batches of all ranks of a node, and there are as many strands as nodes, or a
multiple, then each node gets whole strands: n nodes fetch the data set once, and a cache for one
n-th of it serves all epochs. 19 samples in runs of 2, 2 strands, blocks of 8, turns of 2, seed 3::

    for ever                strand 0               strand 1               tail
    runs                    5 0 7 6                1 4 2 3                8 and a short one
    epoch 0                 block 0                block 1                tail
    runs of strand 0        7 0                    6 5
    runs of strand 1        3 2                    1 4
    samples, shuffled: 0    1 15 14 0              10 13 11 12
                       1    7 4 5 6                2 3 9 8
    in turns                1 15 7 4 14 0 5 6      10 13 2 3 11 12 9 8    18 17 16

Ranks and nodes have no place in the sequence. It is the same for any number of them, and a run goes
on with others at any position.
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.plan.draws import (
    Feistel,
    Purpose,
    Table,
    permute,
    random_words,
    stable_order,
)
from lightning_shards.plan.order import Order, SampleOrder, in_blocks, remembered, require_range

_Ints = NDArray[np.int64]


def shares_of_nodes(order: Order, nodes: int) -> int:
    """Of how many equal shares of an order's strands each node reads one; without strands 1.

    8 strands fall to 6 nodes in turns, so that each node reads every second one of them.
    """
    return gcd(int(order.identity().get("shuffle_strands", 1)), nodes)


@dataclass(frozen=True)
class StrandOrder(Order):
    """The samples of an epoch, each once, where the runs of each strand stay together for ever.

    What fills no run of every strand, the tail, is shuffled at the end of each epoch.

    Attributes:
        inner: The ``shuffled`` order of one strand, with the counts, the seed, the run and the
            block; not one of its positions is asked for.
        strands: Into how many the runs are dealt; one strand is another order than `inner`.
        width: Positions that go to a strand before it is the next one's turn.
    """

    inner: SampleOrder
    strands: int
    width: int = 2_048

    def __post_init__(self) -> None:
        """Refuse strands that no epoch can be made of.

        Raises:
            ConfigError: There are more strands than runs, or than runs of a block.
        """
        inner, strands = self.inner, self.strands
        assert inner.sampling == "shuffled"  # the settings see to both
        assert inner.run
        if strands > self._full_runs:
            raise ConfigError(
                f"shuffle_strands={strands} must be at most the number of runs, and "
                f"{count_of(inner.samples, 'sample')} make {self._full_runs:,} of "
                f"shuffle_run={inner.run}; set fewer strands or a smaller shuffle_run"
            )
        if strands * inner.run > inner.block:
            raise ConfigError(
                f"a block holds at least one run of each strand, and shuffle_strands={strands} "
                f"with shuffle_run={inner.run} do not fit in shuffle_block={inner.block}; set it "
                f"to {strands * inner.run} or more, or set fewer strands"
            )

    def __reduce__(self) -> "tuple[type[StrandOrder], tuple[object, ...]]":
        """Pickle the arguments only: workers shuffle by themselves."""
        return StrandOrder, (self.inner, self.strands, self.width)

    @property
    def samples(self) -> int:
        """Samples of the data set."""
        return self.inner.samples

    def identity(self) -> dict[str, int | str]:
        """That of the inner order, the strands and the width of a turn."""
        own: dict[str, int | str] = {"shuffle_strands": self.strands, "shuffle_width": self.width}
        return self.inner.identity() | own

    def at(self, epoch: int, start: int, stop: int) -> _Ints:
        """The ids at these positions; beyond the end of the epoch they repeat.

        Raises:
            ConfigError: Numbers that no epoch or range has.
            PlanError: Positions of a data set without samples.
        """
        require_range(self.samples, epoch, start, stop)
        places = in_blocks(start, stop, self.samples, self._block_at)
        return self._ids([self._shuffled(epoch, number)[place] for number, place in places])

    def footing(self, epoch: int, start: int, stop: int) -> _Ints:
        """The ids of the blocks of all strands that these positions lie in, each block once.

        Raises:
            ConfigError: Numbers that no epoch or range has.
            PlanError: Positions of a data set without samples.
        """
        require_range(self.samples, epoch, start, stop)
        end = min(stop, start + self.samples)
        places = in_blocks(start, end, self.samples, self._block_at)
        numbers = dict.fromkeys(number for number, _ in places)
        return self._ids([self._last_run_first(epoch, number) for number in numbers])

    # From here on a sample is its number in file order. Blocks are numbered from 0 on, and the tail
    # has the number behind the last one.

    def _ids(self, parts: list[_Ints]) -> _Ints:
        return self.inner.file_order.ids(np.concatenate([np.empty(0, np.int64), *parts]))

    @property
    def _full_runs(self) -> int:
        return self.samples // self.inner.run

    @property
    def _runs_of_strand(self) -> int:
        return self._full_runs // self.strands

    @cached_property
    def _runs_of_block(self) -> int:
        """Runs of each strand in a block, such that turns are whole, or a turn has whole parts.

        Then the turns of the next block do not fall to other nodes. At most half of what
        `shuffle_block` allows is given up for it.
        """
        run, most = self.inner.run, self.inner.block // (self.strands * self.inner.run)
        whole = (
            runs
            for runs in range(most, most // 2, -1)
            if runs * run % self.width == 0 or self.width % (runs * run) == 0
        )
        return next(whole, most)

    def _block_at(self, position: int) -> tuple[int, int, int]:
        """The number of the block of a position, its first position and the one behind its last."""
        size = self._runs_of_block * self.strands * self.inner.run
        tail = self._runs_of_strand * self.strands * self.inner.run
        if position >= tail:
            return -(-tail // size), tail, self.samples
        number = position // size
        return number, number * size, min((number + 1) * size, tail)

    @cached_property
    def _dealt(self) -> Table | Feistel:
        """The runs of strand 0, then those of strand 1, and so on, and then those of the tail."""
        return permute(self._full_runs, Purpose.STRANDS, (self.inner.seed, 0))

    def _parts(self, epoch: int, number: int) -> _Ints:
        """The sample numbers of a block, run by run: a row for each strand, or one for the tail."""
        # runs: shape (strands, runs of a strand in this block), or (1, runs of the tail). Behind
        # the full runs of the tail stands the short one, which may be empty.
        first, last = number * self._runs_of_block, (number + 1) * self._runs_of_block
        if first < self._runs_of_strand:
            slots = np.arange(first, min(last, self._runs_of_strand), dtype=np.int64)
            begins = np.arange(self.strands, dtype=np.int64)[:, None] * self._runs_of_strand
            runs = self._dealt.forward((begins + self._order_of_runs(epoch).forward(slots)).ravel())
            runs = runs.reshape(self.strands, -1)
        else:
            left = np.arange(self.strands * self._runs_of_strand, self._full_runs, dtype=np.int64)
            runs = np.append(self._dealt.forward(left), self._full_runs)[None]
        numbers = runs[..., None] * self.inner.run + np.arange(self.inner.run, dtype=np.int64)
        return numbers[numbers < self.samples].reshape(len(runs), -1)

    @remembered(2)  # since workers run ahead into the next epoch
    def _order_of_runs(self, epoch: int) -> Table | Feistel:
        """The order of the runs of each strand."""
        key, strands = (self.inner.seed, epoch), (self.strands,)
        return permute(self._runs_of_strand, Purpose.STRAND_RUNS, key, strands)

    @remembered()
    def _shuffled(self, epoch: int, number: int) -> _Ints:
        """The sample numbers of a block in their sequence."""
        parts, key = self._parts(epoch, number), (self.inner.seed, epoch)
        span = (0, parts.size)
        words = random_words(Purpose.STRAND_BLOCKS, key, span, stream=number)
        shuffled = np.take_along_axis(parts, stable_order(words.reshape(parts.shape)), axis=1)
        turns = range(0, parts.shape[1], self.width)
        return np.concatenate([shuffled[:, turn : turn + self.width].ravel() for turn in turns])

    def _last_run_first(self, epoch: int, number: int) -> _Ints:
        """The sample numbers of a block; no run goes on where the one before it ends."""
        numbers = self._parts(epoch, number).ravel()
        return numbers[np.argsort(-(numbers // self.inner.run), kind="stable")]
