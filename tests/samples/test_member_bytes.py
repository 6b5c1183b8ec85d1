"""Members that are not what they were are found, in whatever way they are asked for."""

import io
import os
import zlib

import numpy as np
import pytest

from lightning_shards import SplitConfig
from lightning_shards.samples.member_bytes import ABSENT, ColumnError, MemberBytes
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.tables import TableStore, build_tables

SAMPLES, BATCH = 11, 4
FIELDS = {"x": "npy", "ids": "bin", "text": "txt"}


def members_of(sample, letters):
    numbers = np.random.default_rng(sample)
    file = io.BytesIO()
    np.save(file, numbers.random(5, np.float32))
    ids = numbers.integers(0, 999, 5, np.uint16)
    return {"npy": file.getvalue(), "bin": ids.tobytes(), "txt": b"a" * letters}


@pytest.fixture(params=[1, 3], ids=["of one size", "of several sizes"])
def members(request):
    """The members of each sample; their texts may differ in length."""
    return [members_of(n, 1 + n % request.param) for n in range(SAMPLES)]


@pytest.fixture
def loader_of(tmp_path, write_tar, make_module):
    """The loader of a shard that was indexed with `members` and holds `now`."""
    path = tmp_path / "shard.tar"

    def pack(members):
        samples = enumerate(members)
        write_tar(path, [(f"{n:03}.{suffix}", of[suffix]) for n, of in samples for suffix in of])

    def make(members, now, **transforms):
        pack(members)
        cache = CacheFolder(tmp_path / "cache")
        build_tables([str(path)], TableStore(cache, with_crc32=True))
        stat = path.stat()
        pack(now)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        in_order = {"sampling": "sequential", "remainder": "balanced"}
        split = SplitConfig(str(path), on_bad_sample="substitute", max_bad=SAMPLES, **in_order)
        settings = {"fields": FIELDS, "decode": {"ids": "uint16"}, "batch_size": BATCH}
        return make_module(split, transforms=transforms, **settings).loader("train")

    return make


def bad(loader):
    list(loader)
    return sorted(each.sample for each in loader.served.bad)


def flipped(members, sample, suffix):
    """The members, of which one has another last bit."""
    data = members[sample][suffix]
    changed = members[sample] | {suffix: data[:-1] + bytes([data[-1] ^ 1])}
    return [*members[:sample], changed, *members[sample + 1 :]]


def as_it_is(value):
    return value


@pytest.mark.parametrize("transforms", [{}, {"x": as_it_is}], ids=["plain", "transformed"])
def test_what_is_whole_is_served(loader_of, members, transforms):
    for step, batch in enumerate(loader_of(members, members, **transforms)):
        own = members[BATCH * step :][:BATCH]
        assert batch["text"] == [each["txt"].decode() for each in own]
        expected = np.stack([np.load(io.BytesIO(each["npy"])) for each in own])
        assert np.array_equal(batch["x"], expected)
        assert batch["ids"].numpy().tobytes() == b"".join(each["bin"] for each in own)


@pytest.mark.parametrize("suffix", ["npy", "bin", "txt"])
def test_one_flipped_bit_in_any_member_spoils_its_sample_alone(loader_of, members, suffix):
    for sample in range(SAMPLES):
        assert bad(loader_of(members, flipped(members, sample, suffix))) == [sample]


def test_damage_beside_a_sample_that_lacks_a_member_is_found(loader_of, members):
    del members[1]["npy"]
    assert bad(loader_of(members, flipped(members, 9, "npy"))) == [1, 9]


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
