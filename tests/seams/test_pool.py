"""What every pool owes to a loader, checked on all of them."""

import random
import time
from collections import deque
from dataclasses import dataclass
from itertools import count, product
from threading import Event
from threading import enumerate as enumerate_threads

import numpy as np
import psutil
import pytest
import torch
from fakes import example

from lightning_shards.errors import SampleError, TransformError
from lightning_shards.loader import ShardLoader
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.tensors import new_tensor
from lightning_shards.system.process import Cancellable, wait_for_event
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.processes import ProcessPool
from lightning_shards.workers.threads import ThreadPool
from tests.ray.actor_samples import running_actors
from tests.ray.actor_transforms import Raising
from tests.ray.local_clusters import NEEDS_RAY, local_cluster

POOLS = [
    pytest.param(example("thread_pool").OneThread(), id="example"),
    pytest.param(InlinePool(), id="inline"),
    pytest.param(ThreadPool(3), id="threads"),
    pytest.param(ProcessPool(3, start_method="fork"), id="fork", marks=pytest.mark.ddp),
    pytest.param(
        ProcessPool(2, start_method="fork", threads=2), id="threads-in-fork", marks=pytest.mark.ddp
    ),
    pytest.param(
        ProcessPool(2, start_method="fork", batch_bytes=2**20),
        id="several-in-a-message",
        marks=pytest.mark.ddp,
    ),
    pytest.param(ProcessPool(2, start_method="forkserver"), id="forkserver", marks=pytest.mark.ddp),
]

ON_RAY = pytest.param(
    "ray",
    id="ray",
    marks=[
        NEEDS_RAY,
        pytest.mark.slow,
        pytest.mark.ddp,
        pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets and processes it drops
    ],
)
ALSO_ON_RAY = pytest.mark.parametrize("pool", [*POOLS, ON_RAY], indirect=True)
"""For few tests: to start two actors costs seconds of CPU. `tests/ray` has sources of all kinds."""

PLACE = Place(rank=1, world_size=2)
START = Cursor(epoch=3)


@dataclass(frozen=True)
class LargeBatches:
    """Batch number n is a megabyte of n; the first worker fails at one of its own."""

    fails_at: int = -1

    def describe(self):
        return SourceDescription("numbers", "sequential")

    def batches(self, place, cursor, arena=None):
        for number in count(place.worker, place.num_workers):
            if number == self.fails_at:
                raise SampleError(f"at {number}")
            made = new_tensor((2**20,), torch.uint8, arena).fill_(number % 256)
            yield LoadedBatch({"x": made, "number": torch.tensor(number)})


@pytest.fixture(params=POOLS)
def pool(request):
    is_ray = request.param == "ray"
    return request.getfixturevalue("ray_pool") if is_ray else request.param


@pytest.fixture(scope="module")
def ray_pool():
    """Two actors, in a cluster that ends with this module."""
    from lightning_shards.workers.ray.pool import RayPool

    with local_cluster():
        yield RayPool(2, batches_per_call=2, cpus_per_worker=0.5)


@pytest.fixture
def start_pool(request):
    """Starts streams of a pool, which end with the test."""

    def started(pool, source=None, cursor=START):
        stream = pool.start(source or LargeBatches(), PLACE, cursor)
        request.addfinalizer(stream.close)
        return stream

    return started


@pytest.fixture
def start(pool, start_pool):
    """Starts streams of the pool of this test."""
    return lambda source, cursor=START: start_pool(pool, source, cursor=cursor)


@pytest.fixture
def source(pack_shards, make_source):
    """Three steps of an epoch for each of two ranks."""
    return make_source(pack_shards([5, 0, 8]), shuffle_buffer=3, seed=5)


def take(stream, num_batches):
    return [next(stream).batch for _ in range(num_batches)]


def expected_batches(source, num_producers, num_batches, cursor=START):
    """The batches of the workers in turn."""
    workers = [
        source.batches(PLACE.with_worker(worker, num_producers), cursor)
        for worker in range(num_producers)
    ]
    return [next(workers[number % num_producers]).batch for number in range(num_batches)]


def plain(batches):
    return [(batch["__key__"], batch["__id__"].tolist()) for batch in batches]


def processes_of(stream):
    workers = getattr(stream, "_workers", None)
    return [psutil.Process(worker.pid) for worker in workers] if workers else running_actors()


@ALSO_ON_RAY
@pytest.mark.parametrize(("cursor", "number"), [(START, 8), (Cursor(epoch=1, samples=4), 3)])
def test_batches_come_in_step_order_from_any_cursor(pool, start, source, cursor, number):
    """Over ends of epochs too."""
    expected = expected_batches(source, pool.describe().num_producers, number, cursor)
    assert plain(take(start(source, cursor), number)) == plain(expected)


def test_a_pool_starts_any_number_of_streams(start, source):
    first, second = start(source), start(source)
    assert plain(take(first, 2)) == plain(take(second, 2))
    first.close()
    assert len(take(second, 1)) == 1


class Draws:
    """A transform that draws from all global generators."""

    def __call__(self, label):
        return label + random.random() + float(np.random.random()) + float(torch.rand(()))  # noqa: NPY002


class DrawsItsOwn:
    """A transform that draws from what it is given."""

    def __call__(self, label, rng):
        return label + rng.random()


def global_generators():
    """The states of all of them, as they can be compared."""
    legacy = repr(np.random.get_state())  # noqa: NPY002
    return random.getstate(), legacy, torch.get_rng_state().tolist()


def test_no_global_generator_moves_whatever_the_pool(pool, pack_shards, make_source):
    is_threaded = "thread" in pool.describe().kind or getattr(pool, "threads", 1) > 1
    transforms = {"label": DrawsItsOwn() if is_threaded else Draws()}
    source = make_source(pack_shards([5, 0, 8]), shuffle_buffer=3, transforms=transforms)
    before = global_generators()
    source.first_sample(PLACE)
    with ShardLoader(source, pool, PLACE) as loader:
        for epoch in (0, 7):  # where the workers have to start again
            loader.set_epoch(epoch)
            next(iter(loader))
    assert global_generators() == before


ERRORS = [(0, ArithmeticError), (6, SampleError), (9, ArithmeticError)]


@pytest.mark.parametrize(
    ("pool", "number", "error"),
    [
        pytest.param(*pool.values, *error, id=f"{pool.id}-{error[0]}", marks=pool.marks)
        for pool, error in [*product(POOLS, ERRORS), (ON_RAY, ERRORS[1])]
    ],
    indirect=["pool"],
)
def test_batches_before_an_error_are_delivered_and_no_others(
    pool, number, error, start, pack_shards, make_source
):
    """Whichever worker it happens in, and wherever in a message."""
    settings = {"urls": pack_shards([80]), "sampling": "sequential"}
    expected = plain(
        expected_batches(make_source(**settings), pool.describe().num_producers, 12, Cursor())
    )
    (key, *_), _ = expected[number]
    stream = start(make_source(**settings, stages=(Raising(key, error),)), Cursor())
    processes = processes_of(stream)
    assert plain(take(stream, number)) == expected[:number]
    # what is not ours names the stage that raised it
    with pytest.raises(error if error is SampleError else TransformError, match=f"at {key}"):
        next(stream)
    assert psutil.wait_procs(processes, timeout=10)[1] == []


@ALSO_ON_RAY
def test_closing_ends_the_stream_and_its_processes(start, source):
    stream = start(source)
    processes = processes_of(stream)
    next(stream)
    stream.close()
    stream.close()
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    with pytest.raises(StopIteration):
        next(stream)


class Silent(LargeBatches):
    """A source whose server does not answer after the first batch of each worker."""

    def batches(self, place, cursor, arena=None):
        yield LoadedBatch({"x": 1})
        wait_for_event(Event(), 60)


class EnoughError(BaseException):
    """As Lightning raises when it was told to end."""


@pytest.mark.parametrize("pool", POOLS[1:], indirect=True)
def test_a_wait_for_a_server_is_called_off_in_the_trainer_and_in_its_workers(pool, start):
    stream = start(Silent())
    workers, checked = getattr(stream, "_workers", []), []

    def check():
        checked.append(time.perf_counter())
        raise EnoughError

    took = time.perf_counter()
    with pytest.raises(EnoughError), Cancellable(check):
        take(stream, 10)
    stream.close()
    assert checked[0] - took < 30
    assert [worker.exitcode for worker in workers] == [0] * len(workers)  # none had to be killed
    assert not [thread for thread in enumerate_threads() if thread.name.endswith("(_fill)")]


@pytest.mark.ddp
@pytest.mark.parametrize(("kept", "shared"), [(1, 2**20), (40, 2**22 + 1)])
def test_batches_stay_as_they_are_for_as_long_as_they_are_kept(kept, shared, start_pool):
    stream = start_pool(ProcessPool(3, start_method="fork", batch_bytes=shared))
    batches = deque(maxlen=kept)
    expected = [bytes([number]) * (2**20 - 1) for number in range(40)]
    for number in range(40):
        batches.append(next(stream).batch)
        batches[-1]["x"][0] = 255  # a batch may be written to
        for earlier, each in enumerate(batches, number + 1 - len(batches)):
            assert (each["number"], int(each["x"][0])) == (earlier, 255)
            assert each["x"][1:].numpy().tobytes() == expected[earlier]  # torch takes longer


@pytest.fixture
def pinned(monkeypatch):
    """The tensors that were pinned, on a machine that can pin none."""
    tensors = []
    cuda = {"is_available": lambda: True, "current_device": lambda: 1, "set_device": tensors.append}
    for name, function in cuda.items():
        monkeypatch.setattr(f"torch.cuda.{name}", function)
    pin = lambda tensor: tensors.append(tensor.shape) or tensor.clone()  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return tensors


@pytest.mark.ddp
def test_a_thread_pins_batches_for_the_device_of_the_trainer(pinned, start_pool):
    pool = ProcessPool(2, start_method="fork", batch_bytes=2**22 + 1, pin_memory=True)
    stream = start_pool(pool, LargeBatches(fails_at=14))
    for number in range(14):
        batch = next(stream).batch
        assert (int(batch["x"].min()), int(batch["x"].max())) == (number, number)
    assert pinned[0] == 1  # else each rank would take memory of the first device
    with pytest.raises(SampleError, match="at 14"):
        next(stream)
    stream.close()
    assert not stream._pinning[0].thread.is_alive()
