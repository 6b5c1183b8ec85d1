"""Batches are right whatever becomes of the cache folder while they are read, or before."""

import os
import struct
from itertools import islice
from zlib import crc32

import pytest
from waiting import wait_for

from lightning_shards.errors import DamagedShardError
from tests.remote.published import module
from tests.remote.test_remote_cache import (
    PIECES,
    ROOMY,
    WITHIN_S,
    content,
    kept,
    served,
    stream_of,
)

__all__ = ["kept"]

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

BATCHES = 32


def damage(path, change):
    """Change a file behind the back of the cache: it looks as if it were checked before."""
    status = path.stat()
    with path.open("r+b") as file:  # a stream that reads on may remove it at once
        change(file)
        file.flush()
        os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def poison(file):
    """Other bytes of the same length, with the crc32 that belongs to them."""
    data = file.read()
    body = bytes(byte ^ 0x55 for byte in data[:-64])
    trailer = bytearray(data[-64:])
    struct.pack_into("<I", trailer, 20, crc32(body))
    file.seek(0)
    file.write(body + trailer)


def cut(file):
    file.truncate(700)


@pytest.fixture
def expected(local, tmp_path):
    return served(module(local, tmp_path, shuffle_run=0).source("train"), BATCHES)


def fill(urls, tmp_path, kept):
    """A stream whose first batch was taken, with all pieces in the cache."""
    stream = stream_of(urls, tmp_path)
    found = [content(next(stream).batch)]
    assert wait_for(lambda: len(kept()) == PIECES, WITHIN_S)
    return stream, found


@pytest.mark.parametrize(("change", "is_open"), [(poison, True), (cut, True), (poison, False)])
def test_pieces_with_other_bytes_are_read_from_the_store(
    change, is_open, published_shards, expected, tmp_path, kept
):
    """What a broken proxy gave once is not served until the folder is cleared by hand."""
    stream, found = fill(published_shards, tmp_path, kept)
    if is_open:
        found += [content(each.batch) for each in islice(stream, 3)]
    else:
        stream.close()
        stream, found = stream_of(published_shards, tmp_path), []
    for path in kept():
        damage(path, change)
    found += [content(each.batch) for each in islice(stream, BATCHES - len(found))]
    stream.close()
    assert found == expected


class WrongAtFirst(dict[str, bytes]):
    """Objects of a server whose first answers hold other bytes of the same version and length."""

    wrong = 0

    def get(self, name, default=None):
        data = super().get(name, default)
        if data is None or not name.endswith(".tar") or not self.wrong:
            return data
        self.wrong -= 1
        return bytes(byte ^ 0x55 for byte in data)


@pytest.mark.parametrize("loader", [ROOMY, {"cache_gib": None}], ids=["cache", "default"])
def test_bytes_that_a_server_gave_wrong_once_are_fetched_again(
    loader, published_shards, expected, server, tmp_path
):
    source = module(published_shards, tmp_path, loader=loader, shuffle_run=0).source("train")
    right = server.objects
    server.objects = WrongAtFirst(right)
    try:
        assert served(source, 1) == expected[:1]
        server.objects.wrong = 1
        assert served(source, BATCHES) == expected
        assert not server.objects.wrong
    finally:
        server.objects = right


def test_bytes_that_stay_wrong_are_an_error_that_names_the_member(
    published_shards, server, tmp_path
):
    source = module(published_shards, tmp_path, loader=ROOMY, shuffle_run=0).source("train")
    right = server.objects
    server.objects = WrongAtFirst(right)
    server.objects.wrong = 10**9
    try:
        with pytest.raises(DamagedShardError, match=r"shard-00000\d.tar.*crc32"):
            served(source, BATCHES)
    finally:
        server.objects = right
