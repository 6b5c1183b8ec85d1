"""The order in which samples of like size meet in batches, so that batches need little padding.

An order around an order: it only moves samples within windows of the inner one. A window is so many
whole groups as a block of the inner order has room for. Nine samples in one window, groups of 4::

    inner order         a  b  c  d  e  f  g  h  i
    size                5  2  9  1  7  3  8  2  4
    left over           i                           drawn by the seed, before any size is looked at
    sorted by size      d  b  h  f  a  e  g  c
    cut in groups       d  b  h  f |a  e  g  c
    groups shuffled     a  e  g  c |d  b  h  f
    and within          g  a  c  e |f  d  h  b
    left over, last     g  a  c  e  f  d  h  b  i

Groups are counted in samples of the sequence and not in batches, so that neither the batch size nor
the number of ranks changes the order.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_shards.plan.digest import id_digests
from lightning_shards.plan.draws import Purpose, mix, random_words, stable_order
from lightning_shards.plan.order import ENDLESS, Order, in_blocks, remembered

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class AlikeOrder(Order):
    """The samples of an order, moved within windows of it so that those of like size are together.

    Attributes:
        inner: The order that says which samples are in a window.
        seed: Of what is drawn.
        group: Samples of like size that stand together, as a rule those of a global batch.
        size_of: Name of what `sizes` are the sizes of, for checkpoints.
        sizes: Gives the sizes of samples, int64 of shape (n,), by their ids of shape (n, 2). It is
            pickled with the order, and several threads may call it at once.
    """

    inner: Order
    seed: int
    group: int
    size_of: str
    sizes: Callable[[_Ints], _Ints]

    def __reduce__(self) -> "tuple[type[AlikeOrder], tuple[object, ...]]":
        """Pickle the arguments only: workers sort by themselves."""
        return AlikeOrder, (self.inner, self.seed, self.group, self.size_of, self.sizes)

    @property
    def samples(self) -> int:
        """Samples of the inner order."""
        return self.inner.samples

    @property
    def window(self) -> int:
        """Positions within which samples are moved: whole groups, of a block if it has one."""
        block = int(self.inner.identity().get("shuffle_block", 1))
        return self.group * max(1, block // self.group)

    def at(self, epoch: int, start: int, stop: int) -> _Ints:
        """The ids at these positions; errors are those of the inner order."""
        if not (0 <= start < stop and self.samples):
            return self.inner.at(epoch, start, stop)
        places = in_blocks(start, stop, self._length, self._window_at)
        return np.concatenate([self._grouped(epoch, number)[place] for number, place in places])

    def identity(self) -> dict[str, int | str]:
        """That of the inner order, what is compared, and the group."""
        return self.inner.identity() | {"batch_alike": self.size_of, "alike_group": self.group}

    def footing(self, epoch: int, start: int, stop: int) -> _Ints:
        """What the inner order gives for the windows of these positions; no size is asked for."""
        if 0 <= start < stop and self.samples:
            last = (stop - 1) % self._length
            start -= start % self._length % self.window
            stop += self._window_at(last)[2] - 1 - last
        return self.inner.footing(epoch, start, stop)

    def as_sets(self, start: int, stop: int) -> list[tuple[Order, int, int]]:
        """Whole windows as the inner order has them, so that sizes are asked for at the ends only.

        Beyond the first end of a sequence, where windows begin anew, all are its own.
        """
        first = -(-start // self.window) * self.window
        last = stop if stop == self._length else stop // self.window * self.window
        if first >= last or stop > self._length:
            return [(self, start, stop)]
        return [(self, start, first), (self.inner, first, last), (self, last, stop)]

    def checksum(self, epoch: int, position: int) -> str:
        """16 hex digits: a sum of 64 bits over the sizes in the window of this position."""
        ids = self.inner.at(epoch, *self._window_at(position % self._length)[1:])
        sums = mix(id_digests(ids) + self.sizes(ids).astype(np.uint64))
        return f"{int(sums.sum(dtype=np.uint64)):016x}"

    @property
    def _length(self) -> int:
        """Positions after which the sequence repeats."""
        return ENDLESS if self.inner.identity()["sampling"] == "resampled" else self.samples

    def _window_at(self, position: int) -> tuple[int, int, int]:
        """The number of the window of a position, its first position and that behind its last."""
        number = position // self.window
        return number, number * self.window, min((number + 1) * self.window, self._length)

    @remembered()
    def _grouped(self, epoch: int, number: int) -> _Ints:
        """The ids of a window in their sequence."""
        ids = self.inner.at(epoch, *self._window_at(number * self.window)[1:])
        # words: what draws the samples that are left over, shuffles within groups, and shuffles
        # groups, shape (3, len(ids)); of the last row as many as there are groups are used.
        key, three_rows = (self.seed, epoch), (0, 3 * len(ids))
        words = random_words(Purpose.ALIKE_GROUPS, key, three_rows, stream=number)
        words = words.reshape(3, -1)
        num_groups = len(ids) // self.group
        grouped, left_over = np.split(stable_order(words[0]), [num_groups * self.group])
        # groups: places in `ids`, the smallest samples first, shape (num_groups, group).
        by_size = np.argsort(self.sizes(ids[grouped]), kind="stable")
        groups = grouped[by_size].reshape(num_groups, self.group)
        within = stable_order(words[1, : groups.size].reshape(groups.shape))
        shuffled = np.take_along_axis(groups, within, axis=1)[stable_order(words[2, :num_groups])]
        return ids[np.concatenate((shuffled.ravel(), left_over))]
