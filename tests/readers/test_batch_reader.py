"""Members of many samples: found and read together, they are those that each one has."""

import os
import random
from itertools import pairwise
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
from lightning_shards.samples.member_bytes import SampleKeys
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import ENCODING
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore, build_tables

FIELDS = (Field("text", ("txt",), "raw"), Field("blob", ("big", "bin"), "raw"))
ALONE = ShardSource(
    index=ShardIndex((), None),
    epochs=EpochSchedule(1, 1, "drop"),
    seed=0,
    recipes=(Recipe(FIELDS),),
)


def members_of(sizes, seed):
    """A text and one blob in each sample, .bin or .big, in any order of the two."""
    data = random.Random(seed)
    for number, size in enumerate(sizes):
        members = [("txt", data.randbytes(data.randrange(9))), ("note", b"-")]
        members.append((data.choice(["bin", "big"]), data.randbytes(size)))
        data.shuffle(members)
        yield from ((f"{seed}-{number}.{suffix}", content) for suffix, content in members)


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
        positions = [range(*span) for span in spans]
        reader.look_up(np.array(ids), positions, [recipe.keyed(SampleSeeds(0, 0))])
        keys = [f"{shard}-{sample}" for shard, sample in ids]
        for number, (start, stop) in enumerate(spans):
            texts, blobs = (each.to_list() for each in reader.members(start, stop).values())
            assert reader.batch(number).batch["__key__"] == keys[start:stop]
            for (shard, sample), text, blob in zip(ids[start:stop], texts, blobs, strict=True):
                one = shards.reader(shard)
                has_big = one.table.find(sample, "big") is not None
                assert text == one.read(sample, "txt")
                assert blob == one.read(sample, "big" if has_big else "bin")


@pytest.mark.parametrize(
    "keys",
    [
        ["abc", "abd", "x/y"],
        ["a", "abc", "x/y"],
        ["abc", "äbc", "ab"],
        ["ab\0", "abc", "xyz"],
        ["é", "ab", "xy"],
        [os.fsdecode(b"\xff\xfe"), "ab", "cd"],
    ],
)
def test_keys_are_cut_out_whatever_they_hold(keys):
    encoded = [key.encode(*ENCODING) for key in keys]
    lengths = np.array(list(map(len, encoded)))
    order = np.array([2, 0, 1, 1])
    starts = (np.cumsum(lengths) - lengths)[order]
    cut = SampleKeys(np.frombuffer(b"".join(encoded), np.uint8), starts, lengths[order])
    assert cut.part(1, 4) == [keys[0], keys[1], keys[1]]
    assert cut.part(0, 1) == [keys[2]]
