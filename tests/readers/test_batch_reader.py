"""Members of many samples: found and read together, they are those that each one has."""

import io
import os
import random
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.read_ahead import ReadBuffer
from lightning_shards.readers.recipe import Components, Recipe
from lightning_shards.samples.fields import Field
from lightning_shards.samples.generators import SampleSeeds
from lightning_shards.samples.member_bytes import SampleKeys
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.index import load_index
from lightning_shards.shards.members import ENCODING
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore, build_tables

FIELDS = (Field("text", ("txt",), "raw"), Field("blob", ("big", "bin"), "raw"))


def pack(path, sizes, seed):
    """A tar with a text and one blob in each sample, .bin or .big, in any order of the two."""
    data = random.Random(seed)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, size in enumerate(sizes):
            members = [("txt", data.randbytes(data.randrange(9))), ("note", b"-")]
            members.append((data.choice(["bin", "big"]), data.randbytes(size)))
            data.shuffle(members)
            for suffix, content in members:
                info = tarfile.TarInfo(f"{seed}-{number}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


SIZES = ([0, 1, 9000, 700, 8191, 8192, 5000], [30_000], [5] * 40)


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for number, sizes in enumerate(SIZES):
        pack(folder / f"{number}.tar", sizes, seed=number)
    return [str(folder / f"{number}.tar") for number in range(len(SIZES))]


def open_shards(urls, cache_dir, *, limit=9, with_crc32=False):
    cache = CacheFolder(cache_dir)
    index = load_index(urls, cache=cache)
    build_tables(index.urls, TableStore(cache, with_crc32=with_crc32))
    return OpenShards(index, cache, limit)


ALL = [(shard, sample) for shard, sizes in enumerate(SIZES) for sample in range(len(sizes))]


def look_up(shards, ids, stops, *, fields=FIELDS, buffer=None, **transforms):
    recipe = Recipe(tuple(fields), transforms)
    reader = BatchReader(shards, Components((recipe,)), StageClock(), buffer=buffer)
    spans = list(pairwise([0, *stops]))
    positions = [range(*span) for span in spans]
    reader.look_up(np.array(ids), positions, [recipe.keyed(SampleSeeds(0, 0))])
    return reader


@given(ids=st.lists(st.sampled_from(ALL), min_size=1), data=st.data())
@settings(max_examples=60)
def test_it_gives_what_reading_one_by_one_gives(urls, ids, data):
    cuts = data.draw(st.sets(st.integers(1, len(ids)), max_size=4)) | {len(ids)}
    limit = data.draw(st.sampled_from([1, 20_000, 2**24]))
    folder = Path(urls[0]).parent / "cache"
    with open_shards(urls, folder, limit=2) as shards:
        reader = look_up(shards, ids, sorted(cuts), buffer=ReadBuffer(limit, lambda: limit))
        keys = [f"{shard}-{sample}" for shard, sample in ids]
        for number, (start, stop) in enumerate(pairwise([0, *sorted(cuts)])):
            texts, blobs = map(list, reader.members(start, stop).values())
            assert reader.batch(number).batch["__key__"] == keys[start:stop]
            for (shard, sample), text, blob in zip(ids[start:stop], texts, blobs, strict=True):
                one = shards.reader(shard)
                has_big = one.table.find(sample, "big") is not None
                assert text == one.read(sample, "txt")
                assert blob == one.read(sample, "big" if has_big else "bin")


def test_a_batch_owns_its_memory(urls, tmp_path):
    with open_shards(urls, tmp_path) as shards:
        made = look_up(shards, ALL, [2, len(ALL)])
        ids = made.batch(0).batch["__id__"]
        assert ids.base is None  # a view would carry all others along
        ids[:] = 0
        assert made.batch(0).batch["__id__"].tolist() == [list(each) for each in ALL[:2]]


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
