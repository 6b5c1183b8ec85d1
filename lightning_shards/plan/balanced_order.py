"""The order in which classes come equally often, however many samples each of them has.

Each draw takes a class and then one of its samples, both at random. The samples of the data set are
sorted by class once; a draw is then two lookups::

    sample number        0   1   2   3   4        class         bird  cat  dog
    class of the sample  cat dog cat cat bird     first entry   0     1    4    (5: the end)
                                                  entries       4     0 2 3  1
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lightning_shards.plan.draws import ORDER_VERSION, FileOrder, Purpose, random_words, scale_words
from lightning_shards.plan.kept_order import Numbers
from lightning_shards.plan.order import Order, require_range

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BalancedOrder(Order):
    """Draws with replacement: first a class by its weight, then one of its samples uniformly.

    Draw j is a function of (seed, epoch, j) alone, and draws are single samples.

    Attributes:
        file_order: Numbers samples through all shards in file order.
        numbers: The number of each sample in file order over all shards, class by class.
        starts: Where each class begins in `numbers`, and their end, shape (num_classes + 1,).
        digest: What no other shards, classes or samples of classes have.
        weights: Of the classes, in their order: from 0 to 1,000,000, and not all 0.
        seed: 0 <= seed < 2**64.
    """

    file_order: FileOrder = field(compare=False)
    numbers: Numbers = field(compare=False)
    starts: Numbers = field(compare=False)
    digest: str
    weights: tuple[float, ...]
    seed: int

    @property
    def samples(self) -> int:
        """Samples of all classes."""
        return len(self.numbers.values())

    def at(self, epoch: int, start: int, stop: int) -> _Ints:
        """The sample ids of draws start to stop; the sequence is endless.

        Raises:
            ConfigError: Numbers that no epoch or range has.
        """
        require_range(self.samples, epoch, start, stop)
        # words: two for each draw, shape (stop - start, 2).
        # shares: where each class ends when weights are put side by side, shape (num_classes,).
        # points: below shares[-1], of 53 bits as a float64 has them, shape (stop - start,).
        key, span = (self.seed, epoch), (2 * start, 2 * stop)
        shares: NDArray[np.float64] = np.cumsum(self.weights)
        words = random_words(Purpose.BALANCED_DRAWS, key, span)
        words = words.reshape(-1, 2)
        points: NDArray[np.float64] = (words[:, 0] >> np.uint64(11)) * (shares[-1] / 2**53)
        drawn: _Ints = np.searchsorted(shares, points, side="right")
        starts = self.starts.values()
        entries = starts[drawn] + scale_words(words[:, 1], starts[drawn + 1] - starts[drawn])
        return self.file_order.ids(self.numbers.values()[entries].astype(np.int64))

    def identity(self) -> dict[str, int | str]:
        """The version of the arithmetic, the seed, and the classes with their samples."""
        return {
            "order_version": ORDER_VERSION,
            "seed": self.seed,
            "sampling": "resampled",
            "balance": f"{len(self.weights)} classes {self.digest}",
            "balance_weights": hashlib.sha256(repr(self.weights).encode()).hexdigest()[:16],
        }
