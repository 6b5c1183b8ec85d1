"""Members of many samples: found and read together, they are those that each one has."""

import random
from itertools import pairwise, starmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.read_ahead import ReadBuffer
from lightning_shards.readers.recipe import Recipe, ShardSource
from lightning_shards.samples.fields import Field
from lightning_shards.samples.generators import SampleSeeds
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.tables import TableStore, build_tables

FIELDS = (Field("text", ("txt",), "raw"), Field("blob", ("big", "bin"), "raw"))
ALONE = ShardSource(
    index=ShardIndex((), None),
    epochs=EpochSchedule(1, 1, "drop"),
    seed=0,
    recipes=(Recipe(FIELDS),),
)


def key_of(shard, sample):
    """Of one length or not, and in one shard with letters of several bytes."""
    return f"{shard}-{sample}" + "äé" * (shard == 1)


def members_of(sizes, seed):
    """A text and one blob in each sample, .bin or .big, in any order of the two."""
    data = random.Random(seed)
    for number, size in enumerate(sizes):
        members = [("txt", data.randbytes(data.randrange(9))), ("note", b"-")]
        members.append((data.choice(["bin", "big"]), data.randbytes(size)))
        data.shuffle(members)
        yield from ((f"{key_of(seed, number)}.{suffix}", content) for suffix, content in members)


SIZES = ([0, 1, 9000, 700, 8191, 8192, 5000], [30_000], [5] * 40)


@pytest.fixture(scope="module")
def urls(tmp_path_factory, write_tar):
    folder = tmp_path_factory.mktemp("shards")
    return [
        str(write_tar(folder / f"{number}.tar", members_of(sizes, seed=number)))
        for number, sizes in enumerate(SIZES)
    ]


def open_shards(urls):
    """No more than two of them at a time."""
    cache = CacheFolder(Path(urls[0]).parent / "cache")
    index = load_index(urls, cache=cache)
    build_tables(index.urls, TableStore(cache))
    return OpenShards(index, cache, 2)


ALL = [(shard, sample) for shard, sizes in enumerate(SIZES) for sample in range(len(sizes))]


@given(ids=st.lists(st.sampled_from(ALL), min_size=1), data=st.data())
@settings(max_examples=60)
def test_it_gives_what_reading_one_by_one_gives(urls, ids, data):
    cuts = data.draw(st.sets(st.integers(1, len(ids)), max_size=4)) | {0, len(ids)}
    spans = list(pairwise(sorted(cuts)))
    limit = data.draw(st.sampled_from([1, 20_000, 2**24]))
    buffer, (recipe,) = ReadBuffer(most=limit), ALONE.recipes
    with open_shards(urls) as shards:
        reader = BatchReader(shards, ALONE, StageClock(), buffer=buffer)
        reader.look_up(np.array(ids), spans, [recipe.keyed(SampleSeeds(0, 0))])
        keys = list(starmap(key_of, ids))
        for number, (start, stop) in enumerate(spans):
            batch = reader.batch(number).batch
            assert batch["__key__"] == keys[start:stop]
            columns = ids[start:stop], batch["text"], batch["blob"]
            for (shard, sample), text, blob in zip(*columns, strict=True):
                one = shards.reader(shard)
                has_big = one.table.find(sample, "big") is not None
                assert text == one.read(sample, "txt")
                assert blob == one.read(sample, "big" if has_big else "bin")
