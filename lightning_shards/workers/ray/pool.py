"""The pool of Ray actors: the trainer says which batches each one makes next, in step order.

Ray places the actors, starts them again when they or their nodes die, and repeats the calls that
were lost. All that is decided here is the numbers of the batches that a call asks for.
"""

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from lightning_shards.errors import ConfigError, ShardError, WorkerError, count_of
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.generators import are_same
from lightning_shards.samples.stage_clock import ActorTotals
from lightning_shards.samples.tensors import default_dtype_name
from lightning_shards.system.process import CHECK_S, raise_if_cancelled
from lightning_shards.workers.connection import Received
from lightning_shards.workers.inline import try_first_sample
from lightning_shards.workers.messages import Packed, put_together
from lightning_shards.workers.pool import BatchStream, PoolDescription
from lightning_shards.workers.ray.cluster import AUTO, Joining, cluster, ray
from lightning_shards.workers.ray.maker import BatchMaker, Whereabouts, library_versions
from lightning_shards.workers.ray.travel import digest_of_source, packed_source
from lightning_shards.workers.watchdog import WORKER_TIMEOUT_S
from lightning_shards.workers.worker import MessageStream

_PLACED_S = 60.0
"""Seconds in which an actor must have started; on an idle machine it takes 2 to 3."""

_STARTS = 5
"""How often a trainer starts if the one whose actors it shares ends at this moment."""

_StartActor = Callable[[int, str | None], Any]
"""Starts the actor of this number, on a node of this id if one is given."""

_log = logging.getLogger(__name__)


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
        worker_timeout_s: Seconds that a call may take before its actor is started again; 0: any.
        most_retries: How often a call is repeated that its actor or node did not survive. A node
            that dies uses up six; a sample that kills its actor would be tried for ever without it.
        joining: Which cluster is joined.
        share: A name under which trainers with equal sources have the same actors; None: each has
            its own.
        most_kept: Messages that each shared actor keeps.
    """

    num_workers: int
    prefetch_factor: int = 2
    batches_per_call: int = 1
    cpus_per_worker: float = 1.0
    placement: Literal["SPREAD", "PACK"] = "SPREAD"
    worker_timeout_s: float = WORKER_TIMEOUT_S
    most_retries: int = 20
    joining: Joining = AUTO
    share: str | None = None
    most_kept: int = 1

    def describe(self) -> PoolDescription:
        """A description in which each actor is a worker."""
        return PoolDescription("ray", self.num_workers, self.prefetch_factor)

    def start(
        self, source: Source, place: Place, cursor: Cursor, starts: int = _STARTS
    ) -> BatchStream:
        """Start the actors at the cursor, and see whether their nodes make the same sample.

        `starts` is how often it may be tried, as shared actors can end with another trainer.

        Raises:
            ConfigError: No cluster can be joined, it has no room, the source cannot be sent, or a
                node makes another sample than this one.
            ShardError: A node cannot read the shards.
        """
        packed = packed_source(source)
        cluster.hold(self.joining._replace(cpus=self.num_workers * self.cpus_per_worker), place)
        actors: list[Any] = []
        try:
            sent = [ray.put(packed)]  # Ray keeps it for as long as there is this reference
            cpus = 0.0 if source.epochs.pinned else self.cpus_per_worker
            start_actor = partial(self._start_actor, self._shared_name(source, place), place, cpus)
            where = self._start_actors(actors, start_actor, cpus)
            _try_nodes(actors, where, sent, source, place)
        except BaseException as error:
            _end_actors(os.getpid(), [] if self.share else actors, [])
            has_ended = isinstance(error, ray.exceptions.ActorDiedError)
            if self.share and has_ended and starts > 1:  # with the trainer that had started it
                return self.start(source, place, cursor, starts - 1)
            if isinstance(error, ray.exceptions.RayError):
                raise WorkerError(
                    f"Ray cannot start actors ({error}); all nodes need this package, the modules "
                    "that the transforms are defined in, and room in memory"
                ) from error
            raise
        return _RayStream(self, actors, start_actor, where, sent, (source, place, cursor))

    def _shared_name(self, source: Source, place: Place) -> str:
        """What the names of this rank's shared actors begin with; empty: it has its own."""
        if self.share is None:
            return ""
        purpose = f"lightning_shards {self.share} pinned={source.epochs.pinned} "
        shape = (place.world_size, self.num_workers, default_dtype_name())
        name = f"{purpose}{digest_of_source(source, *shape)}"
        named = [found["name"] for found in ray.util.list_named_actors(all_namespaces=True)]
        others = [each for each in named if each.startswith(purpose) and name not in each]
        if others and not source.epochs.pinned:  # a trainer may have several evaluation sets
            _log.warning(
                "ray.share=%r is also used with other settings or other code, and nothing is "
                "shared with those trainers; give all trainers of one name equal settings of "
                "data, batch size, seed, ranks and workers, or give them other names",
                self.share,
            )
        return f"{name} {place.rank}"

    def _start_actor(
        self, name: str, place: Place, cpus: float, worker: int, node: str | None
    ) -> Any:
        """Start an actor, on this node if it has room, or find the one of this name."""
        affinity: Any = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        options: dict[str, Any] = {"num_cpus": cpus}
        options["scheduling_strategy"] = affinity(node, soft=True) if node else "SPREAD"
        if name:
            options |= {"name": f"{name} {worker}", "namespace": "shared", "get_if_exists": True}
        kind = ray.remote(max_restarts=-1, max_task_retries=self.most_retries)(BatchMaker)
        apart = replace(place, num_nodes=place.world_size)  # it shares no disk with other ranks
        worker_place = apart.with_worker(worker, self.num_workers)
        kept = self.most_kept if name else 0
        return kind.options(**options).remote(worker_place, default_dtype_name(), kept)

    def _start_actors(
        self, actors: list[Any], start_actor: _StartActor, cpus: float
    ) -> list[Whereabouts]:
        """Add the actors to the list, and wait until all of them have started."""
        node, until = None, time.perf_counter() + _PLACED_S
        for worker in range(self.num_workers):
            actors.append(start_actor(worker, node))
            if self.placement == "PACK" and worker == 0:
                node = self._wait_for_start(actors, until, cpus)[0].node
        return self._wait_for_start(actors, until, cpus)

    def _wait_for_start(
        self, actors: Sequence[Any], until: float, cpus: float
    ) -> list[Whereabouts]:
        asked = [actor.whereabouts.remote() for actor in actors]
        waiting: Sequence[Any] = asked
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=CHECK_S)
            raise_if_cancelled()
            if waiting and time.perf_counter() > until:
                has, free = (
                    resources.get("CPU", 0)
                    for resources in (ray.cluster_resources(), ray.available_resources())
                )
                raise ConfigError(
                    f"{len(waiting)} of {count_of(self.num_workers, 'actor')} with {cpus:g} CPUs "
                    f"each have not started in {_PLACED_S:g} s; the cluster has {has:g} CPUs, of "
                    f"which {free:g} are free: add nodes, or lower num_workers or "
                    "ray.cpus_per_worker"
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
    here = ray.get_runtime_context().get_node_id()
    first_of = {found.node: number for number, found in reversed(list(enumerate(where)))}
    asked = {
        number: actors[number].try_node.remote(sent, place, is_elsewhere=node != here)
        for node, number in first_of.items()
    }
    expected = try_first_sample(source, place).batch
    for number, call in asked.items():
        value, versions = _result_of(call)
        loaded, failure = _unpacked(value)
        host = where[number].host
        if failure is not None:
            _raise_of_node(host, failure.error)
        if are_same(expected, loaded[0].batch):
            continue
        if are_same(expected, try_first_sample(source, place).batch):  # it is not random by itself
            here_and_there = [
                f"{name} {own} and {versions[name]}" for name, own in library_versions().items()
            ]
            raise ConfigError(
                f"node {host} makes another first sample than this one; here and there are "
                f"{', '.join(here_and_there)}: install the same versions on all nodes"
            )


def _raise_of_node(host: str, error: Exception) -> None:
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


def _unpacked(value: Packed) -> Received:
    """Batches, and the failure after them; what lies in Ray's store cannot be written to."""
    return put_together(value._replace(parts=[part.copy() for part in value.parts]))


class _RayStream(MessageStream):
    """The batches in step order; each actor has `prefetch_factor` calls under way."""

    def __init__(
        self,
        pool: RayPool,
        actors: list[Any],
        start_actor: _StartActor,
        where: Sequence[Whereabouts],
        sent: Sequence[object],
        begun: tuple[Source, Place, Cursor],
    ) -> None:
        super().__init__(len(actors))
        self._pool, self._actors, self._where, self._begun = pool, actors, list(where), begun
        self._start_actor = start_actor
        self._sent: Sequence[object] = sent
        self._numbers = list(range(len(actors)))  # of the first batch of each actor's next call
        self._calls: list[deque[Any]] = [deque() for _ in actors]
        own = [] if pool.share else actors  # shared ones end with the trainer that started them
        self._finalizer = weakref.finalize(self, _end_actors, os.getpid(), own, self._calls)
        for _ in range(pool.prefetch_factor):
            for worker in range(len(actors)):
                self._ask(worker)

    def _ask(self, worker: int) -> None:
        count = self._pool.batches_per_call
        actor, cursor = self._actors[worker], self._begun[2]
        make = actor.make_shared if self._pool.share else actor.make
        self._calls[worker].append(make.remote(self._sent, cursor, self._numbers[worker], count))
        self._numbers[worker] += count * len(self._actors)

    def _end(self) -> None:
        self._finalizer()
        self._actors, self._sent = [], []

    def _receive(self, worker: int) -> Received:
        try:
            value, _, where = self._made_by(worker)
        except ray.exceptions.RayTaskError as error:
            raise WorkerError(
                f"what an actor made cannot be sent to the trainer ({error.cause}); let fields be "
                "tensors, numbers or texts, or take pool='threads' or 'inline'"
            ) from error
        except ray.exceptions.RayError as error:
            raise WorkerError(self._lost_text(worker, error)) from error
        is_new = where != self._where[worker]
        repeated = is_new * len(self._calls[worker]) * self._pool.batches_per_call
        self._where[worker] = where
        self._calls[worker].popleft()
        self._ask(worker)
        loaded, failure = _unpacked(value)
        received = ActorTotals(value.nbytes, is_new, repeated)
        return [each._replace(received=received) for each in loaded[:1]] + loaded[1:], failure

    def _made_by(self, worker: int) -> tuple[Packed, bool, Whereabouts]:
        """What the first call of an actor has made.

        A shared actor ends with the trainer that started it, and so does all that it has kept.
        Then another one is asked, which may be this trainer's to start.
        """
        if not self._pool.share:
            return self._wait_for(worker)
        for _ in range(self._pool.most_retries):
            with suppress(ray.exceptions.ActorDiedError, ray.exceptions.ObjectLostError):
                return _result_of(self._wait_for(worker)[0])
            self._ask_another(worker)
        return _result_of(self._wait_for(worker)[0])

    def _ask_another(self, worker: int) -> None:
        calls = self._calls[worker]
        self._actors[worker] = self._start_actor(worker, self._where[worker].node)
        self._numbers[worker] -= len(calls) * self._pool.batches_per_call * len(self._actors)
        calls.clear()
        for _ in range(self._pool.prefetch_factor):
            self._ask(worker)

    def _wait_for(self, worker: int) -> Any:
        """The result of the first call of an actor, which is started again if it takes too long.

        The start of an actor is not counted.
        """
        call, begin = self._calls[worker][0], time.perf_counter()
        while not ray.wait([call], timeout=CHECK_S)[0]:
            raise_if_cancelled()
            waited_s, timeout_s = time.perf_counter() - begin, self._pool.worker_timeout_s
            if timeout_s and waited_s > timeout_s:
                _log.warning(
                    "actor %d, last on node %s, has given no batch for %g s "
                    "(LoaderConfig.worker_timeout_s); it is started again",
                    worker,
                    self._where[worker].host,
                    waited_s,
                )
                ray.kill(self._actors[worker], no_restart=False)  # its calls are repeated
                begin = time.perf_counter() + _PLACED_S
        return ray.get(call)

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


def _end_actors(owner_pid: int, actors: Sequence[Any], calls: Sequence[deque[Any]]) -> None:
    if os.getpid() != owner_pid:
        return  # a fork of the trainer drops its copy
    with suppress(Exception):  # the cluster may have ended first
        for call in (call for queue in calls for call in queue):
            ray.cancel(call)  # otherwise Ray prints a line for each one
        for actor in actors:
            ray.kill(actor)
    cluster.release()
