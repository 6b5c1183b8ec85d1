"""The place of a stream of batches (its rank, and the worker that makes it), and the cursor."""

from dataclasses import dataclass, replace

from lightning_shards.errors import ConfigError, require_at_least


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the whole job has come.

    Attributes:
        epoch: Number of the epoch, from 0.
        samples: Samples of **this epoch** that the whole job has trained, repeats not counted.
    """

    epoch: int = 0
    samples: int = 0


WAYS_TO_A_PLACE = (
    "with a Trainer, trainer.fit(model, datamodule=data) finds out the rank by itself; else make "
    "the loader with the numbers of its process: data.loader(split, rank=rank, "
    "world_size=world_size), as in trainer.distributed_sampler_kwargs"
)

_MOST = 2**20
"""More ranks than any job has; to plan an epoch takes time for each of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """One producer of batches among all of them.

    It is found out once, in the trainer process, and then passed on as an argument: a worker never
    asks the environment which rank it serves (under forkserver and spawn the answer is wrong).

    Attributes:
        rank: Data-parallel rank, 0 <= rank < world_size.
        world_size: Number of data-parallel ranks.
        worker: Number of this worker within its rank, 0 <= worker < num_workers.
        num_workers: Number of workers that share the batches of this rank, at least 1.
        num_nodes: Number of nodes that the ranks are spread over evenly, in their order.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1
    num_nodes: int = 1

    def __post_init__(self) -> None:
        """Refuse a place outside its own world, and keep numbers of numpy as plain ones.

        Raises:
            ConfigError: A number is not a whole one or too large, or `rank` or `worker` is not
                below its total.
        """
        for total in ("world_size", "num_workers", "num_nodes"):
            value = require_at_least(total, getattr(self, total), 1, _MOST)
            object.__setattr__(self, total, value)
        for name, total in (("rank", self.world_size), ("worker", self.num_workers)):
            value = require_at_least(name, getattr(self, name), 0, total - 1)
            object.__setattr__(self, name, value)

    @property
    def ranks_of_node(self) -> range:
        """The ranks of the node of this one; all if they cannot be spread evenly.

        >>> Place(rank=5, world_size=8, num_nodes=2).ranks_of_node
        range(4, 8)
        """
        if self.world_size % self.num_nodes:
            return range(self.world_size)
        ranks = self.world_size // self.num_nodes
        first = self.rank - self.rank % ranks
        return range(first, first + ranks)

    def with_worker(self, worker: int, num_workers: int) -> "Place":
        """The place of one worker of this rank."""
        return replace(self, worker=worker, num_workers=num_workers)


def place_if_given(rank: int | None, world_size: int | None) -> Place | None:
    """The place that two numbers name, None if both are left out.

    Raises:
        ConfigError: One is given without the other, or the rank is not in its world.
    """
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise ConfigError(
            f"rank={rank} and world_size={world_size} of a loader go together; give both, or "
            "neither where there is one process"
        )
    return Place(rank, world_size)
