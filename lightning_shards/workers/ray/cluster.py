"""The Ray cluster of this process: it joins one that runs, or starts one on this machine.

A cluster that the user has joined, as inside of Ray Train, is taken as it is, and left alone.
"""

import logging
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from math import ceil
from typing import Any, NamedTuple

import ray as untyped_ray

from lightning_shards.errors import ConfigError, UnsafeError, WorkerError
from lightning_shards.plan.place import Place
from lightning_shards.system.process import CHECK_S, num_cpus, wait_for_event

ray: Any = untyped_ray
"""Ray, for this folder: the types of its own are full of holes."""

_JOIN_S = 60.0
"""Seconds in which the first rank of a node starts a cluster; an idle machine takes 5."""


class Joining(NamedTuple):
    """Which cluster is joined.

    Attributes:
        address: ``auto``, ``local`` or ``host:port``, as in `RayConfig`.
        allows_open: Whether a cluster may be one that everybody who reaches it can use.
        cpus: CPUs that the actors of a rank ask for. A cluster that is started has them, whatever
            the machine has: as with worker processes, there may be more actors than cores.
    """

    address: str = "auto"
    allows_open: bool = False
    cpus: float = 0.0


AUTO = Joining()


class _Cluster:
    def __init__(self) -> None:
        self._streams, self._is_joined = 0, False
        self._lock = threading.RLock()

    def hold(self, joining: Joining, place: Place) -> None:
        """Join the cluster unless this process is in one, which it stays in until `release`.

        Raises:
            ConfigError: There is none, or it cannot be joined.
            UnsafeError: It asks for no token.
        """
        with self._lock:
            if not ray.is_initialized():
                with _kept_signals():
                    _join(joining, place)
                self._is_joined = True
                _require_token(joining)
            self._streams += 1

    def release(self) -> None:
        """The stream that held the cluster has ended."""
        with self._lock:
            self._streams -= 1

    def leave_unused(self) -> None:
        """Leave the cluster that this process joined by itself, unless a stream uses it.

        One that it has started ends. By then the other ranks of the node have all their batches.
        """
        with self._lock:
            if not self._streams and self._is_joined:
                self._is_joined = False
                ray.shutdown()


cluster = _Cluster()


def _join(joining: Joining, place: Place) -> str:
    """Join or start a cluster, and return the address that was given for it."""
    address, ranks = joining.address, place.ranks_of_node
    is_first = place.rank == ranks.start
    cpus = max(num_cpus(), ceil(len(ranks) * joining.cpus))
    if address == "local" and is_first:
        return _init("local", num_cpus=cpus, include_dashboard=False)
    if address not in {"auto", "local"}:
        return _init(address)
    until = time.perf_counter() + _JOIN_S
    while True:
        try:
            return _init("auto")
        except ConnectionError as error:
            if place.num_nodes > 1:
                raise ConfigError(
                    f"pool='ray' on {place.num_nodes} nodes needs a cluster, and this machine is "
                    "in none; run `ray start --head` on one node and `ray start "
                    "--address=HOST:6379` on the others, with RAY_AUTH_MODE=token on all"
                ) from error
            if is_first:
                return _init("local", num_cpus=cpus, include_dashboard=False)
            if time.perf_counter() > until:
                raise WorkerError(
                    f"rank {ranks.start} of this node has started no Ray cluster in {_JOIN_S:g} s; "
                    "see its log"
                ) from error
            wait_for_event(threading.Event(), CHECK_S)


def _init(address: str, **settings: Any) -> str:
    try:
        ray.init(address=address, logging_level=logging.WARNING, **settings)
    except ConnectionError as error:
        if address in {"auto", "local"}:
            raise
        raise ConfigError(
            f"no Ray cluster answers at ray.address={address!r} ({error}); look at `ray status` "
            "there, or take 'auto'"
        ) from error
    except (RuntimeError, ray.exceptions.RayError) as error:  # another version, a wrong token
        told = " ".join(str(error).split())  # a table of versions
        raise ConfigError(
            f"the Ray cluster at {address!r} cannot be joined: {told}; all nodes need the same "
            "versions of Ray and Python, and the same token"
        ) from error
    return address


def _require_token(joining: Joining) -> None:
    authentication = ray._private.authentication.authentication_utils  # noqa: SLF001 the only way
    if not (authentication.is_token_auth_enabled() or joining.allows_open):
        cluster.leave_unused()
        raise UnsafeError(
            "this Ray cluster asks for no token, so that everybody who reaches one of its ports "
            "can run code on it; start it with RAY_AUTH_MODE=token, or set allow_unsafe=['ray']"
        )


@contextmanager
def _kept_signals() -> Generator[None]:
    """Ray would take SIGTERM, which is Lightning's to handle."""
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)
