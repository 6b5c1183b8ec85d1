"""The loader: as many batches as it says, in epochs that end, rest, resume and begin again."""

import io
import itertools
import json
import pickle
import tarfile
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightning_shards import LoaderConfig, ShardDataModule, ShardLoader, SplitConfig, plan_epoch
from lightning_shards.errors import ConfigError, ShardError, StateError
from lightning_shards.pipeline.collate import Made
from lightning_shards.pipeline.source import Epochs
from lightning_shards.plan.cursor import Cursor
from lightning_shards.topology import Place
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.pool import produce

MAX_COUNT = 6
MAX_SHARDS = 6


class RoundRobinPool:
    """Workers without processes: their batches in turn, as torch's DataLoader takes them."""

    def __init__(self, num_workers=1):
        self.num_workers = num_workers
        self.streams = []

    def start(self, source, place, cursor):
        workers = [
            produce(source, place.with_worker(worker, self.num_workers), cursor)
            for worker in range(self.num_workers)
        ]
        self.streams.append(RoundRobinStream(itertools.cycle(workers), cursor))
        return self.streams[-1]


class RoundRobinStream:
    def __init__(self, workers, cursor):
        self.workers, self.cursor, self.closed = workers, cursor, False

    def __next__(self):
        assert not self.closed
        return next(next(self.workers))

    def close(self):
        self.closed = True


@dataclass(frozen=True)
class NumberedSource:
    """Batches that say which they are: (epoch, samples trained before it)."""

    epochs: Epochs
    fails_in: int | None = None

    def with_epochs(self, epochs):
        return replace(self, epochs=epochs)

    def batches(self, place, cursor):
        for turn in self.epochs.turns(place, cursor):
            if turn.epoch == self.fails_in:
                raise ConfigError("this epoch fails")
            for step in turn.own_steps():
                yield Made((turn.epoch, turn.plan.trained(step)))


class FakeProgress:
    """A trainer that begins at a cursor, wants a number of steps, and has trained less."""

    def __init__(self, cursor, limit=None):
        self.cursor, self.limit = cursor, limit

    def begin(self, loader):
        return self.cursor, self.limit

    def trained(self, loader):
        return Cursor(9, 2)


def make_loader(pool=None, *, pinned=False, fails_in=None, **settings):
    """A loader of three steps of two samples an epoch."""
    epochs = Epochs(7, batch_size=2, remainder="drop", pinned=pinned)
    source = NumberedSource(epochs, fails_in)
    return ShardLoader(source, pool or RoundRobinPool(), Place(), **settings)


# --- worlds ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shards_by_count(tmp_path_factory):
    """For each number of samples up to MAX_COUNT, shards with that many."""
    folder = tmp_path_factory.mktemp("worlds")
    urls = {}
    for count, copy in itertools.product(range(MAX_COUNT + 1), range(MAX_SHARDS)):
        urls[count, copy] = str(folder / f"{count}-{copy}.tar")
        with tarfile.open(urls[count, copy], "w", format=tarfile.USTAR_FORMAT) as shard:
            for sample in range(count):
                info = tarfile.TarInfo(f"{sample}.cls")
                info.size = 1
                shard.addfile(info, io.BytesIO(b"%d" % sample))
    return urls


@dataclass(frozen=True)
class World:
    """Everything that may change the batches of a job, and the workers, which may not."""

    counts: list[int]
    world_size: int
    num_workers: int
    batch_size: int
    sampling: str
    remainder: str
    dataset_size: int | None
    shuffle_buffer: int
    reader: str = "stream"

    @property
    def plan(self):
        samples = self.dataset_size or sum(self.counts)
        return plan_epoch(samples, self.batch_size, self.world_size, self.remainder)

    def loaders(self, shards_by_count):
        """One loader per rank."""
        config = SplitConfig(
            [shards_by_count[count, copy] for copy, count in enumerate(self.counts)],
            sampling=self.sampling,
            reader=self.reader,
            remainder=self.remainder,
            batch_size=self.batch_size,
            dataset_size=self.dataset_size,
            shuffle_buffer=self.shuffle_buffer,
        )
        cache_dir = str(shards_by_count[0, 0]) + "-cache"
        module = ShardDataModule(
            config, fields={"label": "cls"}, num_workers=0, loader=LoaderConfig(cache_dir=cache_dir)
        )
        for rank in range(self.world_size):
            loader = module.loader("train", rank=rank, world_size=self.world_size)
            if self.num_workers:
                loader.pool = RoundRobinPool(self.num_workers)
            yield loader


@st.composite
def worlds(draw, samplings=("resampled", "shuffled", "sequential")):
    sampling = draw(st.sampled_from(samplings))
    nominal = st.none() | st.integers(1, 40) if sampling == "resampled" else st.none()
    world = World(
        counts=draw(st.lists(st.integers(0, MAX_COUNT), min_size=1, max_size=MAX_SHARDS)),
        world_size=draw(st.integers(1, 5)),
        num_workers=draw(st.integers(0, 4)),
        batch_size=draw(st.integers(1, 5)),
        sampling=sampling,
        remainder=draw(st.sampled_from(["drop", "pad", "balanced"])),
        dataset_size=draw(nominal),
        shuffle_buffer=draw(st.sampled_from([0, 3])),
        reader=draw(st.sampled_from(["stream", "auto"])),
    )
    assume(sum(world.counts) and world.plan.steps)
    return world


FEWER_SHARDS_THAN_PLACES = [  # one shard for four ranks, each of three workers
    World([6, 0], 4, 3, 1, sampling, remainder, None, 0)
    for sampling in ("resampled", "shuffled", "sequential")
    for remainder in ("drop", "pad", "balanced")
]


@pytest.mark.parametrize(
    "world", FEWER_SHARDS_THAN_PLACES, ids=lambda world: f"{world.sampling}-{world.remainder}"
)
def test_places_without_a_shard_of_their_own_have_their_share(shards_by_count, world):
    for rank, loader in enumerate(world.loaders(shards_by_count)):
        sizes = [len(batch["__key__"]) for batch in loader]
        assert sizes == [world.plan.size(step, rank) for step in range(world.plan.steps)]


@pytest.mark.slow
@settings(max_examples=1000)
@given(world=worlds())
def test_the_length_is_the_batches_delivered_in_any_world(shards_by_count, world):
    for rank, loader in enumerate(world.loaders(shards_by_count)):
        for _epoch in range(2):
            sizes = [len(batch["__key__"]) for batch in loader]
            assert len(sizes) == len(loader) == world.plan.steps
            assert sizes == [world.plan.size(step, rank) for step in range(len(sizes))]


@given(world=worlds(samplings=("shuffled", "sequential")))
def test_exact_samplings_serve_each_planned_sample_once(shards_by_count, world):
    served, weightless = Counter(), 0
    for loader in world.loaders(shards_by_count):
        for batch in loader:
            weights = batch.get("__weight__", torch.ones(len(batch["__id__"])))
            served.update(map(tuple, batch["__id__"][weights == 1].tolist()))
            weightless += int((weights == 0).sum())
    everything = {(s, i) for s, count in enumerate(world.counts) for i in range(count)}
    assert served.keys() <= everything
    assert set(served.values()) == {1}
    assert (len(served), weightless) == (world.plan.served, world.plan.padded)


@given(world=worlds())
def test_resampled_ids_are_samples_that_exist(shards_by_count, world):
    for loader in replace(world, sampling="resampled").loaders(shards_by_count):
        for batch in loader:
            assert all(number < world.counts[shard] for shard, number in batch["__id__"].tolist())


@pytest.mark.parametrize("sampling", ["resampled", "shuffled", "sequential"])
def test_an_epoch_is_the_same_rolled_into_and_started_at(shards_by_count, sampling):
    """With 3 workers and 4 steps the second epoch begins with another worker."""
    world = World([5, 0, 6, 2], 1, 3, 3, sampling, "drop", None, 3)
    (rolled,), (started,) = world.loaders(shards_by_count), world.loaders(shards_by_count)
    for _batch in rolled:
        pass
    started.set_epoch(1)
    assert len(rolled) % 3
    assert [b["__id__"].tolist() for b in rolled] == [b["__id__"].tolist() for b in started]


# --- epochs in a plain loop -----------------------------------------------------------------------


def test_nothing_starts_before_the_first_batch_is_asked_for():
    pool = RoundRobinPool()
    iter(make_loader(pool))
    assert pool.streams == []


def test_an_iteration_begins_at_the_start_of_the_epoch():
    loader = make_loader()
    loader.set_epoch(4)
    assert list(loader) == [(4, 0), (4, 2), (4, 4)]


def test_finishing_an_epoch_moves_on():
    loader = make_loader()
    epochs = [{epoch for epoch, _ in loader} for _ in range(3)]
    assert (epochs, loader.epoch) == ([{0}, {1}, {2}], 3)


def test_leaving_an_epoch_early_begins_it_again():
    loader = make_loader()
    for _batch in zip(range(2), loader, strict=False):
        pass
    assert loader.epoch == 0
    assert next(iter(loader)) == (0, 0)


def test_the_stream_goes_on_over_epoch_ends():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    for _epoch in range(3):
        list(loader)
    assert [(stream.cursor, stream.closed) for stream in pool.streams] == [(Cursor(0), False)]


def test_setting_the_epoch_that_comes_anyway_keeps_the_stream():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    for epoch in range(3):
        loader.set_epoch(epoch)
        list(loader)
    assert len(pool.streams) == 1


def test_setting_another_epoch_starts_the_stream_there_and_ends_the_old_one():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    list(loader)
    loader.set_epoch(7)
    list(loader)
    assert [stream.cursor for stream in pool.streams] == [Cursor(0), Cursor(7)]
    assert pool.streams[0].closed


def test_evaluation_is_epoch_0_again_and_keeps_its_stream():
    pool = RoundRobinPool()
    loader = make_loader(pool, pinned=True)
    assert list(loader) == list(loader) == [(0, 0), (0, 2), (0, 4)]
    assert len(pool.streams) == 1


def test_evaluation_is_epoch_0_whatever_epoch_is_set():
    loader = make_loader(pinned=True)
    loader.set_epoch(4)
    assert list(loader) == [(0, 0), (0, 2), (0, 4)]


def test_two_iterations_at_a_time_are_an_error():
    loader = make_loader()
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with pytest.raises(ShardError, match=r"two iterations of one loader.*make a second loader"):
        next(first)


def test_an_iteration_that_was_dropped_does_not_disturb_the_next():
    loader = make_loader()
    dropped = iter(loader)
    next(dropped)
    assert list(loader) == [(0, 0), (0, 2), (0, 4)]


def test_closing_twice_is_closing_once():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    loader.close()
    next(iter(loader))
    loader.close()
    loader.close()
    assert pool.streams[0].closed


def test_a_closed_loader_starts_again():
    loader = make_loader()
    list(loader)
    loader.close()
    assert list(loader) == [(1, 0), (1, 2), (1, 4)]


def test_lightning_ends_the_workers_by_setting_the_iterator_to_none():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    next(iter(loader))
    loader._iterator = None
    assert pool.streams[0].closed


def test_an_error_in_a_stream_ends_it_and_a_later_iteration_starts_anew():
    pool = RoundRobinPool()
    loader = make_loader(pool, fails_in=1)
    list(loader)
    with pytest.raises(ConfigError, match="this epoch fails"):
        list(loader)
    assert [stream.closed for stream in pool.streams] == [True]
    with pytest.raises(ConfigError, match="this epoch fails"):
        list(loader)
    assert [stream.cursor for stream in pool.streams] == [Cursor(0), Cursor(1)]


def test_batches_and_samples_are_counted():
    loader = make_loader()
    list(loader)
    assert (loader.times.batches, loader.times.samples) == (3, 6)


def test_waiting_for_the_start_is_not_waiting_for_batches():
    loader = make_loader()
    next(iter(loader))
    assert loader.times.wait_s == 0 < loader.times.start_s


# --- under a trainer ------------------------------------------------------------------------------


def test_the_trainer_says_where_an_iteration_begins():
    loader = make_loader(progress=FakeProgress(Cursor(6, 2)))
    loader.set_epoch(3)
    assert list(loader) == [(6, 2), (6, 4)]


def test_the_trainer_says_what_was_trained():
    loader = make_loader(progress=FakeProgress(Cursor(0)))
    list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (9, 2)


@pytest.mark.parametrize(("limit", "steps"), [(2, 2), (3, 3), (5, 3), (None, 3)])
def test_a_limit_of_the_trainer_is_a_shorter_epoch(limit, steps):
    loader = make_loader(progress=FakeProgress(Cursor(0), limit))
    assert (len(list(loader)), len(loader)) == (steps, 3)


def test_under_a_limit_the_stream_goes_on_with_the_next_epoch():
    pool, progress = RoundRobinPool(), FakeProgress(Cursor(0), 2)
    loader = make_loader(pool, progress=progress)
    list(loader)
    progress.cursor = Cursor(1)
    assert list(loader) == [(1, 0), (1, 2)]
    assert len(pool.streams) == 1


def test_another_limit_starts_the_stream_again():
    """The workers have made the batches behind the end of the old epoch ready."""
    pool, progress = RoundRobinPool(), FakeProgress(Cursor(0), 2)
    loader = make_loader(pool, progress=progress)
    list(loader)
    progress.cursor, progress.limit = Cursor(1), None
    assert [list(loader), len(pool.streams)] == [[(1, 0), (1, 2), (1, 4)], 2]


# --- length and epoch -----------------------------------------------------------------------------


def test_a_shorter_epoch_is_an_epoch():
    loader = make_loader().with_epoch(2)
    assert (len(loader), list(loader), list(loader)) == (2, [(0, 0), (0, 2)], [(1, 0), (1, 2)])


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_an_epoch_is_not_multiplied_by_the_workers(num_workers):
    loader = make_loader(RoundRobinPool(num_workers)).with_epoch(2)
    assert [list(loader) for _ in range(2)] == [[(0, 0), (0, 2)], [(1, 0), (1, 2)]]


@pytest.mark.parametrize("steps", [0, -1, 4])
def test_an_epoch_that_the_plan_does_not_have_is_refused(steps):
    with pytest.raises(ConfigError, match=rf"epoch of {steps} steps.*plan of 3; give 1 to 3"):
        make_loader().with_epoch(steps)


@pytest.mark.parametrize("steps", [2, 4])
def test_a_length_that_is_not_the_truth_is_refused(steps):
    with pytest.raises(ConfigError, match=rf"length of {steps} is not.* 3 steps; call with_epoch"):
        make_loader().with_length(steps)


def test_with_epoch_and_with_length_make_new_loaders():
    pool = RoundRobinPool()
    loader = make_loader(pool)
    next(iter(loader))
    list(loader.with_epoch(2).with_length(2))
    assert len(loader) == 3
    assert not pool.streams[0].closed


def test_a_loader_with_a_length_pickles_without_its_stream():
    loader = make_loader(InlinePool(), identity={"seed": 1}).with_epoch(2).with_length(2)
    next(iter(loader))
    copied = pickle.loads(pickle.dumps(loader))
    assert (len(copied), list(copied)) == (2, [(0, 0), (0, 2)])


# --- state ----------------------------------------------------------------------------------------


def test_the_state_counts_what_was_handed_out():
    loader = make_loader()
    for _batch in zip(range(2), loader, strict=False):
        pass
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (0, 4)


def test_the_state_at_an_epoch_end_is_the_next_epoch():
    loader = make_loader()
    list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (1, 0)


def test_the_state_is_plain_enough_for_json_and_weights_only():
    loader = make_loader(identity={"seed": 3, "shards": "abc"})
    list(loader)
    state = loader.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == json.loads(json.dumps(state)) == state


def test_a_restored_loader_begins_after_the_last_batch():
    loader = make_loader()
    for _batch in zip(range(2), loader, strict=False):
        pass
    restored = make_loader()
    restored.load_state_dict(loader.state_dict())
    assert [list(restored) for _ in range(2)] == [[(0, 4)], [(1, 0), (1, 2), (1, 4)]]


def test_the_length_in_a_resumed_epoch_is_that_of_a_whole_one():
    restored = make_loader()
    restored.load_state_dict({**restored.state_dict(), "samples": 4})
    assert len(restored) == 3


def test_a_state_survives_being_loaded_and_saved_again():
    restored = make_loader()
    state = {**restored.state_dict(), "epoch": 5, "samples": 2}
    restored.load_state_dict(state)
    assert restored.state_dict() == state


def test_setting_another_epoch_forgets_the_state():
    restored = make_loader()
    restored.load_state_dict({**restored.state_dict(), "samples": 4})
    restored.set_epoch(3)
    assert next(iter(restored)) == (3, 0)


def test_setting_the_epoch_of_the_state_keeps_the_state():
    restored = make_loader()
    restored.load_state_dict({**restored.state_dict(), "epoch": 3, "samples": 4})
    restored.set_epoch(3)
    assert list(restored) == [(3, 4)]


def test_a_state_behind_the_end_of_a_shorter_epoch_goes_on_with_the_next_epoch():
    restored = make_loader().with_epoch(1)
    restored.load_state_dict({**restored.state_dict(), "samples": 4})
    assert [list(restored) for _ in range(2)] == [[(1, 0)], [(2, 0)]]


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 8), ("shards", "other"), ("version", 0), ("seed", None)]
)
def test_a_state_of_another_run_is_refused(name, value):
    loader = make_loader(identity={"seed": 7, "shards": "abc"})
    state = loader.state_dict()
    other = {**state, name: value}
    with pytest.raises(StateError) as caught:
        loader.load_state_dict(other)
    assert f"{name}={value!r}, this run has {state[name]!r}" in str(caught.value)
    assert "set it back to resume, or start anew" in str(caught.value)


@pytest.fixture
def make_stream_loader(shards_by_count, tmp_path):
    """A loader of a single rank, 18 samples in steps of 3."""

    def make(sampling, **settings):
        urls = [shards_by_count[6, copy] for copy in range(3)]
        config = SplitConfig(urls, sampling, reader="stream", batch_size=3)
        module = ShardDataModule(
            config,
            fields={"label": "cls"},
            num_workers=0,
            loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
            **settings,
        )
        return module.loader("train")

    return make


def ids(batch):
    return tuple(map(tuple, batch["__id__"].tolist()))


def test_a_resumed_stream_draws_anew(make_stream_loader):
    loader = make_stream_loader("resampled")
    first = [ids(batch) for _, batch in zip(range(2), loader, strict=False)]
    restored = make_stream_loader("resampled")
    restored.load_state_dict(loader.state_dict())
    rest = [ids(batch) for batch in restored]
    assert len(rest) == 4
    assert not set(first) & set(rest)


def test_a_resumed_stream_goes_on_with_the_epochs_of_a_run_without_a_stop(make_stream_loader):
    loader, restored = make_stream_loader("resampled"), make_stream_loader("resampled")
    list(loader)
    restored.load_state_dict({**restored.state_dict(), "samples": 6})
    list(restored)
    assert [ids(batch) for batch in restored] == [ids(batch) for batch in loader]


@pytest.mark.parametrize("sampling", ["shuffled", "sequential"])
def test_exact_sampling_cannot_be_resumed_inside_an_epoch(make_stream_loader, sampling):
    loader = make_stream_loader(sampling)
    loader.load_state_dict({**loader.state_dict(), "samples": 6})
    with pytest.raises(StateError, match=rf"begin 6 samples into.*'{sampling}'; resume from"):
        next(iter(loader))


def test_exact_sampling_can_be_resumed_at_an_epoch_end(make_stream_loader):
    loader, restored = make_stream_loader("shuffled"), make_stream_loader("shuffled")
    list(loader)
    restored.load_state_dict(loader.state_dict())
    assert [ids(batch) for batch in restored] == [ids(batch) for batch in loader]


def test_a_state_of_another_seed_is_refused_by_a_real_loader(make_stream_loader):
    state = make_stream_loader("resampled", seed=1).state_dict()
    with pytest.raises(StateError, match="seed=1, this run has 2"):
        make_stream_loader("resampled", seed=2).load_state_dict(state)
