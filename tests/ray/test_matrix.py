"""Actors, nodes and trainers that die at random, on clusters of their own; minutes.

With LONG_RUNS=1 there are 200 dead actors and 20 dead nodes: hours.
"""

import os
import random
import socket
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pytest

from lightning_shards import RayConfig
from lightning_shards.errors import ConfigError, WorkerError
from lightning_shards.samples.generators import are_same
from tests.ray.actor_samples import ACTORS, endless, made_here, make_module, running_actors
from tests.ray.actor_transforms import ByProcess
from tests.ray.local_clusters import NEEDS_RAY, cluster_of_nodes, local_cluster

IS_LONG = bool(os.environ.get("LONG_RUNS"))
KILLS, NODES = (200, 20) if IS_LONG else (12, 3)

pytestmark = [
    NEEDS_RAY,
    pytest.mark.matrix,
    pytest.mark.timeout(7200 if IS_LONG else 1200),
    pytest.mark.ddp,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets and processes that Ray drops
]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def urls(tmp_path, pack_into):
    return pack_into(tmp_path / "shards", [30, 40, 50])


@contextmanager
def opened(folder, urls, loader=ACTORS, **settings):
    """An endless stream of batches, its loader, and the batches that it should give."""
    module = make_module(folder, loader=loader, train={"urls": urls}, **settings)
    with module.loader("train") as made:
        made.pool = replace(made.pool, batches_per_call=1)  # else 64 are made ahead
        stream = endless(made)
        yield stream, made, made_here(made.source, 1, 20 * KILLS)


def test_actors_killed_at_random_moments_change_no_batch(urls, tmp_path):
    draws = random.Random(0)
    with local_cluster(), opened(tmp_path, urls) as (stream, _, expected):
        made = list(islice(stream, 5))
        for _ in range(KILLS):
            draws.choice(running_actors()).kill()
            made += islice(stream, draws.randint(6, 18))
            assert are_same(made, expected[: len(made)])


def test_a_stopped_actor_is_an_error_that_names_its_machine(urls, tmp_path):
    patient = replace(ACTORS, worker_timeout_s=6.0)
    with local_cluster(), opened(tmp_path, urls, patient) as (stream, *_):
        list(islice(stream, 5))
        for actor in running_actors():
            actor.suspend()
        with pytest.raises(WorkerError, match=f"actor, started on {socket.gethostname()}"):
            list(islice(stream, 20))


def test_nodes_removed_without_grace_and_added_change_no_batch(urls, tmp_path):
    import ray

    with cluster_of_nodes(2) as nodes, opened(tmp_path, urls) as (stream, loader, expected):
        made = list(islice(stream, 5))
        for _ in range(NODES):
            asked = [actor.whereabouts.remote() for actor in loader._open.stream._actors]
            held = {found.node for found in ray.get(asked)}
            removed = next(node for node in nodes.worker_nodes if node.node_id in held)
            nodes.remove_node(removed, allow_graceful=False)
            nodes.add_node(num_cpus=1)
            made += islice(stream, 20)
            assert are_same(made, expected[: len(made)])


def test_a_node_that_makes_another_sample_is_found_before_the_first_step(urls, tmp_path):
    other = {"transforms": {"label": ByProcess()}}
    module = make_module(tmp_path, loader=ACTORS, train={"urls": urls}, **other)
    with (
        local_cluster(),
        module.loader("train") as loader,
        pytest.raises(ConfigError, match="another first sample than this one; install the"),
    ):
        next(iter(loader))


OPEN = """
from lightning_shards.errors import UnsafeError
from lightning_shards.workers.ray.cluster import join, ray
try:
    join("local")
except UnsafeError as error:
    print(error, ray.is_initialized())
join("local", allows_open=True)
print(ray.is_initialized())
"""


def test_a_cluster_without_a_token_is_joined_only_where_that_is_allowed(start_program):
    command = ["env", "RAY_AUTH_MODE=disabled", sys.executable, "-c", OPEN]
    with start_program(command, ROOT) as program:
        said = program.stdout.read()
    assert "asks for no token" in said
    assert "allow_unsafe=['ray'] False\nTrue" in said


TRAINER = """
import sys
from tests.ray.actor_samples import ACTORS, endless, make_module
from pathlib import Path
if __name__ == "__main__":
    folder, *urls = sys.argv[1:]
    module = make_module(Path(folder), loader=ACTORS, train={"urls": urls})
    for batch in endless(module.loader("train")):
        print("batch", flush=True)
"""


def test_a_killed_trainer_leaves_nothing_behind(urls, tmp_path, start_program):
    """But for two agents of Ray, which may take minutes to notice, and are ended here."""
    command = [sys.executable, "-c", TRAINER, str(tmp_path), *urls]
    with start_program(command, ROOT) as trainer:
        while "batch" not in trainer.stdout.readline():
            assert trainer.poll() is None
        started = psutil.Process(trainer.pid).children(recursive=True)
        trainer.kill()
        _, alive = psutil.wait_procs(started, timeout=5)
        alive = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
        names = [" ".join(process.cmdline()) for process in alive]
        for process in alive:
            process.kill()
    assert not [name for name in names if "BatchMaker" in name or "raylet " in name]


def test_packed_actors_are_on_one_node(urls, tmp_path):
    packed = replace(ACTORS, ray=RayConfig(cpus_per_worker=0.1, placement="PACK"))
    with cluster_of_nodes(2):
        for loader, count in ((packed, 1), (ACTORS, 2)):
            with opened(tmp_path, urls, loader) as (stream, made, expected):
                assert are_same(list(islice(stream, 5)), expected[:5])
                assert len({found.node for found in made._open.stream._where}) == count
