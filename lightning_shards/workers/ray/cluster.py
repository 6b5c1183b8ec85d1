"""The Ray cluster of this process: it joins one that runs, or starts one on this machine.

A cluster that the user has joined, as inside of Ray Train, is taken as it is, and left alone.
"""

import logging
import signal
from contextlib import suppress
from math import ceil
from typing import Any

import ray as untyped_ray

from lightning_shards.errors import ConfigError, UnsafeError
from lightning_shards.system.process import num_cpus

ray: Any = untyped_ray
"""Ray, for this folder: the types of its own are full of holes."""


def join(
    address: str, world_size: int = 1, cpus: float = 0.0, *, allows_open: bool = False
) -> None:
    """Join the cluster, or start it, unless this process is in one; Ray leaves it with the process.

    Args:
        address: ``auto``, ``local`` or ``host:port``, as in `RayConfig`.
        world_size: Ranks, which share a cluster.
        cpus: CPUs that the actors of a rank ask for. A cluster that is started has them, whatever
            the machine has: as with worker processes, there may be more actors than cores.
        allows_open: Whether it may be a cluster that everybody who reaches it can use.

    Raises:
        ConfigError: There is none, or it cannot be joined.
        UnsafeError: It asks for no token.
    """
    if ray.is_initialized():
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _join(address, world_size, cpus)
    finally:
        with suppress(ValueError):  # another thread than the main one sets none
            signal.signal(signal.SIGTERM, handler)  # Lightning's, which Ray takes
    authentication = ray._private.authentication.authentication_utils  # noqa: SLF001 the only way
    if not (authentication.is_token_auth_enabled() or allows_open):
        ray.shutdown()
        raise UnsafeError(
            "this Ray cluster asks for no token, so that everybody who reaches one of its ports "
            "can run code on it; start it with RAY_AUTH_MODE=token, or set allow_unsafe=['ray']"
        )


def _join(address: str, world_size: int, cpus: float) -> None:
    if address != "local":
        try:
            return _init(address)
        except ConnectionError as error:
            if address != "auto":
                raise ConfigError(
                    f"no Ray cluster answers at ray.address={address!r} ({error}); look at "
                    "`ray status` there, or take 'auto'"
                ) from error
    if world_size > 1:
        raise ConfigError(
            f"pool='ray' on {world_size} ranks needs a cluster that they share; run `ray start "
            "--head` on one node and `ray start --address=HOST:6379` on the others, with "
            "RAY_AUTH_MODE=token on all, and take ray.address='auto'"
        )
    return _init("local", num_cpus=max(num_cpus(), ceil(cpus)), include_dashboard=False)


def _init(address: str, **settings: Any) -> None:
    try:
        ray.init(address=address, logging_level=logging.WARNING, **settings)
    except (RuntimeError, ray.exceptions.RayError) as error:  # another version, a wrong token
        told = " ".join(str(error).split())  # a table of versions
        raise ConfigError(
            f"the Ray cluster at {address!r} cannot be joined: {told}; all nodes need the same "
            "versions of Ray and Python, and the same token"
        ) from error
