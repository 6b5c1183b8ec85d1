"""What a stream reads, and in which order: each epoch anew, each rank and worker its own part."""

import random
import subprocess
import sys
from itertools import chain, islice, product

import numpy as np
import pytest
from webdataset.filters import shuffle

from lightning_shards.plan.draws import shard_draws, shard_order, stream_start
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.stream_stages import buffered

NUM_SHARDS = 9
ALONE = Place()


def ids(source, num_batches, place=ALONE, epoch=0, samples=0):
    """The sample ids of the first batches, in order."""
    made = islice(source.batches(place, Cursor(epoch, samples)), num_batches)
    return list(chain.from_iterable(map(tuple, each.batch["__id__"].tolist()) for each in made))


def in_turn(source, cursor, num_batches, num_workers):
    """The sample ids of batches of one rank, which its workers make in turn."""
    workers = [
        source.batches(Place(0, 1, worker, num_workers), cursor) for worker in range(num_workers)
    ]
    made = (next(workers[number % num_workers]) for number in range(num_batches))
    return [each.batch["__id__"].tolist() for each in made]


def shards(source, num_samples, *where, **cursor):
    """The shards of the first samples of a source whose batches and shards hold one sample."""
    return [shard for shard, _ in ids(source, num_samples, *where, **cursor)]


@pytest.fixture
def single_samples(pack_shards, make_source):
    """Makes a source of shards with one sample each, in an epoch of 90 batches of one."""
    urls = pack_shards([1] * NUM_SHARDS)

    def make(**settings):
        return make_source(urls, **{"samples": 90, "batch_size": 1, "counted": False} | settings)

    return make


def test_shuffled_opens_the_shards_in_a_new_order(single_samples):
    source = single_samples(sampling="shuffled", counted=True, samples=NUM_SHARDS)
    for epoch in (0, 1):
        expected = shard_order(NUM_SHARDS, 0, epoch, shuffled=True).tolist()
        assert shards(source, NUM_SHARDS, epoch=epoch) == expected


# --- over the ends of epochs ----------------------------------------------------------------------


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_a_stream_goes_on_over_the_ends_of_epochs(
    pack_shards, make_source, counted, world_size, num_workers
):
    """Each worker reads its draws from end to end, although epochs end within shards."""
    counts, batches = np.array([7, 5, 9, 4]), 60
    source = make_source(pack_shards(counts), samples=12, batch_size=2, counted=counted)
    for rank, worker in product(range(world_size), range(num_workers)):
        slot, stride = worker * world_size + rank, world_size * num_workers
        draws = shard_draws(4, 0, 0, 0, 60 * stride)[slot::stride].tolist()
        expected = [(shard, number) for shard in draws for number in range(counts[shard])]
        expected = expected[stream_start(counts, 0, slot) if counted else 0 :]
        served = ids(source, batches, Place(rank, world_size, worker, num_workers))
        assert served == expected[: 2 * batches]


@pytest.mark.parametrize("buffer", [0, 5])
@pytest.mark.parametrize(("epoch", "samples"), [(1, 0), (5, 0), (3, 8)])
def test_a_stream_with_counts_finds_its_place_in_the_draws(
    pack_shards, make_source, buffer, epoch, samples
):
    """Three workers make five batches an epoch; the worker that makes a batch moves on by two."""
    made = {"samples": 20, "batch_size": 4, "shuffle_buffer": buffer}
    source = make_source(pack_shards([7, 5, 9, 4]), **made)
    whole = [in_turn(source, Cursor(), 45, 3), in_turn(source, Cursor(epoch, samples), 10, 3)]
    if samples and buffer:  # what was in the buffer is shuffled anew
        return
    begin = 5 * epoch + samples // 4
    assert whole[0][begin : begin + 10] == whole[1]


def test_a_stream_without_counts_begins_a_later_epoch_with_another_shard(single_samples):
    source = single_samples()
    draws = shard_draws(NUM_SHARDS, 0, 3, 0, 30).tolist()
    assert shards(source, 30, epoch=3) == draws


def test_a_resumed_stream_draws_from_another_sequence(single_samples):
    resumed = shards(single_samples(), 30, samples=7)
    assert resumed == shard_draws(NUM_SHARDS, 0, 0, 0, 30, resumed_at=7).tolist()


@pytest.mark.parametrize("counts", [[0, 0, 0, 0, 0, 0, 0, 3], [0] * 60 + [1]])
def test_empty_shards_do_not_end_a_stream(counts, pack_shards, make_source):
    source = make_source(pack_shards(counts), samples=2000)
    assert {shard for shard, _ in ids(source, 300)} == {len(counts) - 1}


@pytest.mark.parametrize("size", [2, 7, 1000])
@pytest.mark.parametrize("samples", [0, 1, 150, 1100])
def test_the_shuffle_buffer_is_that_of_webdataset(size, samples):
    ours = buffered(iter(range(samples)), size, random.Random(3).randint)
    assert list(ours) == list(shuffle(size, rng=random.Random(3))(iter(range(samples))))


READS_IMAGES = """
import sys
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.recipe import Recipe
from lightning_shards.readers.stream import StreamSource
from lightning_shards.samples.crops import DecodeResize
from lightning_shards.samples.fields import make_fields
from lightning_shards.shards.index import ShardIndex

crop = {"crop": DecodeResize(size=2)}
fields = make_fields({"crop": "png", "image": "png"}, {"image": "gray"}, frozenset(), crop)
index, epochs = ShardIndex((sys.argv[1],), None), EpochSchedule(2, 2, "drop")
recipe = Recipe(fields, crop).with_arrays(plain=True)
source = StreamSource(index=index, epochs=epochs, seed=0, recipes=(recipe,), sampling="resampled")
batch = next(source.batches(Place(), Cursor())).batch
print(batch["crop"].shape, batch["image"].shape, {"torch", "webdataset"} & {*sys.modules})
"""


def test_a_stream_without_stages_imports_no_torch(pack_shards):
    command = [sys.executable, "-c", READS_IMAGES, *pack_shards([2])]
    said = subprocess.check_output(command, text=True)
    assert said == "(2, 3, 2, 2) (2, 1, 4, 4) set()\n"
