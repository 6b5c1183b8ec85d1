"""The checksum is the same number whoever counts it."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.shards import checksums


@given(data=st.binary(max_size=10_000))
def test_the_fast_crc32_is_that_of_zlib(data):
    assert checksums.crc32 is not zlib.crc32  # the tests install the extra
    for kind in (bytes, bytearray, memoryview):
        assert checksums.crc32(kind(data)) == zlib.crc32(data)
