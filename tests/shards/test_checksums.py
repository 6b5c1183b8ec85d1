"""The checksum is the same number whoever counts it."""

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.shards import checksums


@given(data=st.binary(max_size=10_000))
def test_the_fast_crc32_is_that_of_zlib(data):
    assert checksums.crc32 is not zlib.crc32  # the tests install the extra
    for kind in (bytes, bytearray, memoryview):
        assert checksums.crc32(kind(data)) == zlib.crc32(data)


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    size=st.integers(0, 300),
    data=st.randoms(use_true_random=False),
)
def test_the_crc32_of_members_together_follows_from_theirs(counts, size, data):
    groups = [[data.randbytes(size) for _ in range(count)] for count in counts]
    each = np.array([zlib.crc32(member) for group in groups for member in group], np.uint32)
    joined = checksums.joined_crc32(each, np.array(counts), size)
    assert joined.tolist() == [zlib.crc32(b"".join(group)) for group in groups]
