"""Members that are not what they were are found, in whatever way they are asked for."""

import io
import os
import zlib

import numpy as np
import pytest

from lightning_shards.errors import SampleError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.recipe import Recipe, ShardSource
from lightning_shards.samples.fields import Field
from lightning_shards.samples.generators import SampleSeeds
from lightning_shards.samples.member_bytes import ABSENT, ColumnError, MemberBytes
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.transforms import SampleTransforms
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.tables import TableStore, build_tables

SPANS = [(0, 4), (4, 6), (6, 8), (8, 11)]
SAMPLES = SPANS[-1][1]
LARGER = (4, 5)
FIELDS = (Field("x", ("npy",)), Field("ids", ("bin",), "uint16"), Field("text", ("txt",), "raw"))
ALONE = ShardSource(
    index=ShardIndex((), None),
    epochs=EpochSchedule(1, 1, "drop"),
    seed=0,
    recipes=(Recipe(FIELDS),),
)


def members_of(sample, length):
    numbers = np.random.default_rng(sample)
    file = io.BytesIO()
    np.save(file, numbers.random(length, np.float32))
    ids = numbers.integers(0, 999, length, np.uint16)
    return {"npy": file.getvalue(), "bin": ids.tobytes(), "txt": numbers.bytes(length)}


@pytest.fixture(params=[5, 6], ids=["of one size", "one batch of larger ones"])
def members(request):
    """The members of each sample; those of one batch may be larger."""
    return [members_of(n, request.param if n in LARGER else 5) for n in range(SAMPLES)]


@pytest.fixture
def served(tmp_path, write_tar):
    """Gives the batches of a shard that was indexed with `members` and holds `now`; None: bad."""
    path = tmp_path / "shard.tar"

    def pack(members):
        samples = enumerate(members)
        write_tar(path, [(f"{n:03}.{suffix}", of[suffix]) for n, of in samples for suffix in of])

    def serve(members, now, **transforms):
        pack(members)
        index = load_index([str(path)], cache=CacheFolder(tmp_path))
        build_tables(index.urls, TableStore(CacheFolder(tmp_path), with_crc32=True))
        stat = path.stat()
        pack(now)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        seeds = SampleTransforms(transforms, SampleSeeds(0, 0))
        ids = np.array([(0, n) for n in range(SAMPLES)])
        with OpenShards(index, CacheFolder(tmp_path)) as shards:
            made = BatchReader(shards, ALONE, StageClock())
            made.look_up(ids, [range(*span) for span in SPANS], [seeds])
            return [one(made, number) for number in range(len(SPANS))]

    return serve


def one(made, number):
    try:
        return made.batch(number).batch
    except SampleError:
        return None


def bad(batches):
    return [number for number, batch in enumerate(batches) if batch is None]


def flipped(members, sample, suffix, byte=-1, bit=1):
    data = bytearray(members[sample][suffix])
    data[byte] ^= bit
    changed = list(members)
    changed[sample] = members[sample] | {suffix: bytes(data)}
    return changed


def memory_of(array):
    """What it is a view of."""
    return array if array.base is None else memory_of(array.base)


def as_it_is(value):
    return value


@pytest.mark.parametrize("transforms", [{}, {"x": as_it_is}], ids=["plain", "transformed"])
def test_what_is_whole_is_served(served, members, transforms):
    for (start, stop), batch in zip(SPANS, served(members, members, **transforms), strict=True):
        own = members[start:stop]
        assert batch["text"] == [each["txt"] for each in own]
        expected = np.stack([np.load(io.BytesIO(each["npy"])) for each in own])
        assert batch["x"].tobytes() == expected.tobytes()
        assert batch["x"].shape == expected.shape
        assert memory_of(batch["x"]).nbytes == expected.nbytes  # without the headers
        assert batch["ids"].tobytes() == b"".join(each["bin"] for each in own)


@pytest.mark.parametrize("suffix", ["npy", "bin", "txt"])
def test_one_flipped_bit_in_any_member_spoils_its_batch_alone(served, members, suffix):
    for sample in range(SAMPLES):
        batch = [start <= sample < stop for start, stop in SPANS].index(True)
        now = flipped(members, sample, suffix)
        assert bad(served(members, now)) == [batch]


def test_damage_beside_a_sample_that_lacks_a_member_is_found(served, members):
    del members[1]["npy"]
    now = flipped(members, 9, "npy")
    assert bad(served(members, now)) == [0, 3]


def member_bytes(parts, checksums):
    buffer = np.frombuffer(b"".join(parts), np.uint8)
    sizes = np.array(list(map(len, parts)))
    return MemberBytes(buffer, np.cumsum(sizes) - sizes, sizes, np.array(checksums))


def each(members):
    return list(members.with_gaps())


@pytest.mark.parametrize("ask", [MemberBytes.to_list, MemberBytes.rows, each])
def test_each_member_whose_crc32_is_known_is_checked(ask):
    good, wrong = zlib.crc32(b"abc"), zlib.crc32(b"abd")
    parts = [b"xyz", b"abc"]
    assert ask(member_bytes(parts, [ABSENT, ABSENT])) is not None
    assert ask(member_bytes(parts, [ABSENT, good])) is not None
    with pytest.raises(ColumnError):
        ask(member_bytes(parts, [ABSENT, wrong]))
