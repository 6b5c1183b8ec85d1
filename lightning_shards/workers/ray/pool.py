"""The pool of Ray actors: the trainer says which batches each one makes next, in step order.

Ray places the actors, starts them again when they or their nodes die, and repeats the calls that
were lost. All that is decided here is the numbers of the batches that a call asks for.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from lightning_shards.errors import ConfigError, ShardError, WorkerError, count_of
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.generators import are_same
from lightning_shards.samples.tensors import default_dtype_name
from lightning_shards.system.process import CHECK_S, raise_if_cancelled
from lightning_shards.workers.inline import try_first_sample
from lightning_shards.workers.messages import Packed, put_together
from lightning_shards.workers.pool import (
    WORKER_TIMEOUT_S,
    BatchStream,
    Failure,
    PoolDescription,
    Received,
    WorkerStream,
)
from lightning_shards.workers.ray.cluster import join, ray
from lightning_shards.workers.ray.maker import BatchMaker, Whereabouts, packed_source

_PLACED_S = 60.0
"""Seconds in which an actor must have started; on an idle machine it takes 2 to 3."""


@dataclass(frozen=True)
class RayPool:
    """Runs the source in `num_workers` actors of a Ray cluster.

    Attributes:
        num_workers: Actors of a rank.
        prefetch_factor: Calls that each actor has under way.
        batches_per_call: Batches that one call makes.
        cpus_per_worker: CPUs that each actor asks of the cluster. Those of evaluation ask for none:
            they work while training waits, and a full cluster would never place them.
        placement: ``SPREAD`` over the nodes, or ``PACK``, all on one node if it has room.
        worker_timeout_s: Seconds that the trainer waits for a call, also while Ray starts its actor
            again; 0: there is no limit.
        most_retries: How often a call is repeated that its actor or node did not survive. A node
            that dies uses up six; a sample that kills its actor would be tried for ever without it.
        address: Which cluster is joined, as in `RayConfig`.
        allows_open: Whether it may be one that everybody who reaches it can use.
    """

    num_workers: int
    prefetch_factor: int = 2
    batches_per_call: int = 1
    cpus_per_worker: float = 1.0
    placement: Literal["SPREAD", "PACK"] = "SPREAD"
    worker_timeout_s: float = WORKER_TIMEOUT_S
    most_retries: int = 20
    address: str = "auto"
    allows_open: bool = False

    def describe(self) -> PoolDescription:
        """A description in which each actor is a worker."""
        return PoolDescription("ray", self.num_workers, self.prefetch_factor)

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Start the actors at the cursor, and see whether their nodes make the same sample.

        Raises:
            ConfigError: No cluster can be joined, it has no room, the source cannot be sent, or a
                node makes another sample than this one.
            ShardError: A node cannot read the shards.
        """
        packed = packed_source(source)
        cpus = self.num_workers * self.cpus_per_worker
        join(self.address, place.world_size, cpus, allows_open=self.allows_open)
        actors: list[Any] = []
        try:
            sent = [ray.put(packed)]  # Ray keeps it for as long as there is this reference
            cpus = 0.0 if source.epochs.pinned else self.cpus_per_worker
            where = self._start_actors(actors, place, cpus)
            _try_nodes(actors, where, sent, source, place)
        except BaseException as error:
            _end_actors(actors, [])
            if isinstance(error, ray.exceptions.RayError):
                raise WorkerError(
                    f"Ray cannot start actors ({error}); all nodes need this package, the modules "
                    "that the transforms are defined in, and room in memory"
                ) from error
            raise
        return _RayStream(self, actors, where, sent, (source, place, cursor))

    def _start_actors(self, actors: list[Any], place: Place, cpus: float) -> list[Whereabouts]:
        """Add the actors to the list, and wait until all of them have started."""
        affinity: Any = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        kind = ray.remote(max_restarts=-1, max_task_retries=self.most_retries)(BatchMaker)
        apart = replace(place, num_nodes=place.world_size)  # it shares no disk with other ranks
        strategy = "SPREAD"
        for worker in range(self.num_workers):
            placed = kind.options(num_cpus=cpus, scheduling_strategy=strategy)
            worker_place = apart.with_worker(worker, self.num_workers)
            actors.append(placed.remote(worker_place, default_dtype_name()))
            if self.placement == "PACK" and worker == 0:
                strategy = affinity(self._wait_for_start(actors, cpus)[0].node, soft=True)
        return self._wait_for_start(actors, cpus)

    def _wait_for_start(self, actors: Sequence[Any], cpus: float) -> list[Whereabouts]:
        asked = [actor.whereabouts.remote() for actor in actors]
        _, waiting = ray.wait(asked, num_returns=len(asked), timeout=_PLACED_S)
        if waiting:
            has, free = (
                resources.get("CPU", 0)
                for resources in (ray.cluster_resources(), ray.available_resources())
            )
            raise ConfigError(
                f"{len(waiting)} of {count_of(self.num_workers, 'actor')} with {cpus:g} CPUs each "
                f"have not started in {_PLACED_S:g} s; the cluster has {has:g} CPUs, of which "
                f"{free:g} are free: add nodes, or lower num_workers or ray.cpus_per_worker"
            )
        return ray.get(asked)


def _try_nodes(
    actors: Sequence[Any],
    where: Sequence[Whereabouts],
    sent: Sequence[object],
    source: Source,
    place: Place,
) -> None:
    """Compare the first sample as each node makes it with that of the trainer.

    Raises:
        ConfigError: Another one comes out on a node.
        ShardError: A node cannot make it.
    """
    one_of_each = {found.node: (actor, found) for actor, found in zip(actors, where, strict=True)}
    asked = [(actor.try_node.remote(sent, place), at.host) for actor, at in one_of_each.values()]
    expected = try_first_sample(source, place).batch
    for call, host in asked:
        (made,) = _unpacked(_result_of(call))
        if isinstance(made, Failure):
            _raise_of_node(host, made.error)
        if are_same(expected, made.batch):
            continue
        if are_same(expected, try_first_sample(source, place).batch):  # it is not random by itself
            raise ConfigError(
                f"node {host} makes another first sample than this one; install the same versions "
                "of the libraries that decode and transform on all nodes (compare `pip freeze`)"
            )


def _raise_of_node(host: str, error: Exception) -> NoReturn:
    remedy = ""
    if isinstance(error, FileNotFoundError):
        remedy = "; let all nodes reach the shards, by s3:// or a shared file system"
    kind = type(error) if isinstance(error, ShardError) else WorkerError
    raise kind(f"node {host} cannot make the first sample: {error}{remedy}") from error


def _result_of(call: Any) -> Any:
    """Wait for the result of a call; raises what a check of this thread does."""
    while not ray.wait([call], timeout=CHECK_S)[0]:
        raise_if_cancelled()
    return ray.get(call)


def _unpacked(value: Packed) -> list[LoadedBatch | Failure]:
    """Batches, and the failure after them; what lies in Ray's store cannot be written to."""
    return put_together(value._replace(parts=[part.copy() for part in value.parts]))


class _RayStream(WorkerStream):
    """The batches in step order; each actor has `prefetch_factor` calls under way."""

    def __init__(
        self,
        pool: RayPool,
        actors: list[Any],
        where: Sequence[Whereabouts],
        sent: Sequence[object],
        begun: tuple[Source, Place, Cursor],
    ) -> None:
        self._calls: list[deque[Any]] = [deque() for _ in actors]
        super().__init__(len(actors), pool.worker_timeout_s, _end_actors, actors, self._calls)
        self._pool, self._actors, self._where, self._begun = pool, actors, where, begun
        self._sent: Sequence[object] = sent
        self._numbers = list(range(len(actors)))  # of the first batch of each actor's next call
        for _ in range(pool.prefetch_factor):
            for worker in range(len(actors)):
                self._ask(worker)

    def _ask(self, worker: int) -> None:
        count = self._pool.batches_per_call
        actor, cursor = self._actors[worker], self._begun[2]
        call = actor.make.remote(self._sent, cursor, self._numbers[worker], count)
        self._calls[worker].append(call)
        self._numbers[worker] += count * len(self._actors)

    def _receive(self, worker: int) -> Received:
        try:
            value = _result_of(self._calls[worker][0])
        except ray.exceptions.RayTaskError as error:
            raise WorkerError(
                f"what an actor made cannot be sent to the trainer ({error.cause}); let fields be "
                "tensors, numbers or texts, or take pool='threads' or 'inline'"
            ) from error
        except ray.exceptions.RayError as error:
            raise WorkerError(self._lost_text(worker, error)) from error
        self._calls[worker].popleft()
        self._ask(worker)
        return _unpacked(value)

    def _whereabouts(self, worker: int) -> str:
        host = self._where[worker].host
        return f"it is an actor, started on {host}; if it died, Ray may find no room for another"

    def _lost_text(self, worker: int, error: Exception) -> str:
        source, place, cursor = self._begun
        cursor = source.epochs.cursor_after(cursor, place.world_size, self._step)
        plan = source.epochs.plan(place.world_size, cursor.samples)
        start, stop = plan.rank_span(0, place.rank)
        return (
            f"actor {worker} of rank {place.rank} cannot make the batch of positions {start} to "
            f"{stop - 1} of epoch {cursor.epoch}, or one of the {self._pool.batches_per_call} "
            f"batches of its call: it died {self._pool.most_retries + 1} times. Likely causes: out "
            f"of memory, or a crash in a decoder; num_workers=0 shows the crash itself ({error})"
        )


def _end_actors(actors: Sequence[Any], calls: Sequence[deque[Any]]) -> None:
    with suppress(Exception):  # the cluster may have ended first
        for call in (call for queue in calls for call in queue):
            ray.cancel(call)  # otherwise Ray prints a line for each one
        for actor in actors:
            ray.kill(actor)
