"""Clusters of Ray on this machine, which end with a test; Ray is imported only for one of them."""

import os
import signal
from contextlib import contextmanager, suppress
from importlib.util import find_spec

import psutil
import pytest

NEEDS_RAY = pytest.mark.skipif(
    os.environ.get("CI") != "true" and find_spec("ray") is None,
    reason="Ray is not installed; pip install 'lightning-shards[ray]'",
)


@contextmanager
def ended_processes():
    """All processes that are started in the context below this one end with it.

    What they are is known by now and then asking; what the context leaves is killed by its number.
    """
    before, started = children(), {}
    try:
        yield lambda: started.update({each.pid: each for each in children() - before})
    finally:
        started.update({each.pid: each for each in children() - before})
        _, alive = psutil.wait_procs(list(started.values()), timeout=1)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def local_cluster():
    """A cluster that the pool starts, and that it joins; SIGTERM is left to Lightning."""
    from lightning_shards.workers.ray.cluster import join, ray

    with ended_processes() as note:
        handler = signal.getsignal(signal.SIGTERM)
        join("local")
        try:
            assert signal.getsignal(signal.SIGTERM) is handler
            note()
            yield
        finally:
            note()
            ray.shutdown()


def children():
    return set(psutil.Process().children(recursive=True))


@contextmanager
def cluster_of_nodes(number):
    """A cluster with so many nodes of one CPU, beside that of this process, which has none."""
    import ray
    from ray._private.authentication import authentication_token_setup as authentication
    from ray.cluster_utils import Cluster

    authentication.enable_token_auth_by_default()  # as `ray.init` does for a cluster of its own
    authentication.ensure_token_if_auth_enabled({}, create_token_if_missing=True)
    with ended_processes():
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        try:
            for _ in range(number):
                nodes.add_node(num_cpus=1)
            ray.init(address=nodes.address)
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()
