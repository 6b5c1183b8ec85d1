"""What every source owes to pools and loaders, checked on all of them."""

import pickle
from dataclasses import replace
from itertools import islice

import pytest
from fakes import example

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.plan.digest import add_digests
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import batch_keys

COUNTS = [7, 0, 12, 4]
SAMPLES = sum(COUNTS)
SHARDS = [
    (reader, sampling)
    for reader in ("indexed", "stream")
    for sampling in ("shuffled", "sequential", "resampled")
]
SHARDS += [(reader, "mixture") for reader in ("indexed", "stream")]
Waves = example("synthetic_source").Waves
WORLDS = [(1, 1), (2, 1), (3, 2), (2, 3)]  # ranks, workers of each


@pytest.fixture(params=[*SHARDS, ("example", "waves")], ids="-".join)
def make(request, pack_shards, tmp_path):
    """Makes the source, with a seed."""
    reader, sampling = request.param
    if sampling == "waves":
        return lambda seed=3: Waves(EpochSchedule(SAMPLES, 2, "balanced"), seed)
    urls = pack_shards(COUNTS)
    settings = {"urls": urls, "sampling": sampling}
    if sampling == "mixture":
        mix = {"large": {"urls": urls[1:], "weight": 16}, "small": {"urls": urls[:1], "weight": 7}}
        drawn = "shuffled" if reader == "indexed" else "resampled"
        settings = {"mix": mix, "sampling": drawn, "epoch_of": "large"}

    def of_shards(seed=3):
        split = SplitConfig(**settings, reader=reader, remainder="balanced")
        config = LoaderConfig(cache_dir=str(tmp_path / "cache"))
        data = {"fields": {"label": "cls"}, "batch_size": 2, "num_workers": 0}
        return ShardDataModule(split, **data, seed=seed, loader=config).loader("train").source

    return of_shards


@pytest.fixture
def source(make):
    return make()


def plain(loaded):
    """What a batch holds, to be compared."""
    values = {
        name: value if isinstance(value, list) else value.tolist()
        for name, value in loaded.batch.items()
    }
    return values, loaded.digest


def batches(source, place, cursor, number):
    return [plain(loaded) for loaded in islice(source.batches(place, cursor), number)]


def epoch_of(source, rank, world_size, num_workers, epoch=0):
    """The batches of one rank in an epoch that begins at its start, in step order."""
    steps = source.epochs.steps(world_size)
    places = [Place(rank, world_size).with_worker(each, num_workers) for each in range(num_workers)]
    workers = [source.batches(place, Cursor(epoch)) for place in places]
    return [next(workers[step % num_workers]) for step in range(steps)]


@pytest.mark.parametrize(("world_size", "num_workers"), WORLDS)
def test_each_batch_has_the_size_that_is_planned(source, world_size, num_workers):
    plan = source.epochs.plan(world_size)
    for rank in range(world_size):
        made = epoch_of(source, rank, world_size, num_workers)
        sizes = [len(loaded.batch["label"]) for loaded in made]
        assert sizes == [plan.size(step, rank) for step in range(plan.steps)]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_it_repeats_itself_from_a_cursor_wherever_it_is_unpickled(source, num_workers):
    place = Place(1, 2, num_workers - 1, num_workers)
    first = batches(source, place, Cursor(1), 5)
    assert batches(source, place, Cursor(1), 5) == first
    assert batches(pickle.loads(pickle.dumps(source)), place, Cursor(1), 5) == first


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_epoch_is_the_same_whether_it_was_rolled_into_or_begun_at(source, num_workers):
    steps = source.epochs.steps(2)
    rolled = [
        batches(source, Place(0, 2, each, num_workers), Cursor(), 2 * steps)
        for each in range(num_workers)
    ]
    in_turn = [rolled[step % num_workers][step // num_workers] for step in range(2 * steps)]
    begun = [plain(loaded) for loaded in epoch_of(source, 0, 2, num_workers, epoch=1)]
    assert in_turn[steps:] == begun


def test_other_epochs_are_all_that_changes(source):
    epochs = replace(source.epochs, batch_size=5, limit=1)
    changed = source.with_epochs(epochs)
    assert changed.epochs == epochs
    assert changed.identity() == source.identity()
    assert changed.describe() == source.describe()
    assert changed.with_epochs(source.epochs) == source
    assert len(next(changed.batches(Place(), Cursor())).batch["label"]) == 5


def test_the_identity_is_plain_and_another_seed_is_another_one(make):
    identity = make(seed=3).identity()
    assert {type(value) for value in identity.values()} <= {int, str}
    assert isinstance(identity["reader"], str)
    assert make(seed=3) == make(seed=3)
    assert make(seed=3).identity() == identity
    assert make(seed=4) != make(seed=3)
    other = make(seed=4).identity()
    differing = {name for name in other if other[name] != identity[name]}
    assert {name for name in differing if not name.startswith("component_")} == {"seed"}
    assert other["seed"] == 4


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_first_sample_is_a_batch_of_one(source, world_size):
    for rank in range(world_size):
        assert len(source.first_sample(Place(rank, world_size)).batch["label"]) == 1


@pytest.mark.parametrize(("world_size", "num_workers"), WORLDS)
def test_the_digest_of_an_epoch_is_that_of_what_was_served(source, world_size, num_workers):
    places = [Place(rank, world_size) for rank in range(world_size)]
    expected = [source.describe().expected_digest(2, 0, SAMPLES, place) for place in places]
    if None in expected:
        assert set(expected) == {None}
        return
    served = [
        loaded.digest
        for rank in range(world_size)
        for loaded in epoch_of(source, rank, world_size, num_workers, epoch=2)
    ]
    assert add_digests(*served) == add_digests(*expected)


@pytest.mark.parametrize(("world_size", "num_workers"), WORLDS)
def test_a_replay_tells_what_was_served_or_is_refused(source, world_size, num_workers):
    place, steps = Place(world_size - 1, world_size), range(1, source.epochs.steps(world_size))
    try:
        told = batch_keys(source, place, 1, steps, num_workers=num_workers)
    except ConfigError:
        assert source.describe().index is None
        return
    made = epoch_of(source, place.rank, world_size, num_workers, epoch=1)[1:]
    served = [list(map(tuple, loaded.batch["__id__"].tolist())) for loaded in made]
    assert [[(row.shard, row.sample) for row in rows] for rows in told] == served
