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


def poison(path):
    """Other bytes of the same length, with the crc32 that belongs to them, as if checked before."""
    status = path.stat()
    with path.open("r+b") as file:  # a stream that reads on may remove it at once
        data = file.read()
        body = bytes(byte ^ 0x55 for byte in data[:-64])
        trailer = bytearray(data[-64:])
        struct.pack_into("<I", trailer, 20, crc32(body))
        file.seek(0)
        file.write(body + trailer)
        file.flush()
        os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def expected(local, tmp_path):
    return served(module(local, tmp_path, shuffle_run=0).source("train"), BATCHES)


def test_pieces_with_other_bytes_are_read_from_the_store(
    published_shards, expected, tmp_path, kept
):
    """What a broken proxy gave once is not served until the folder is cleared by hand."""
    stream = stream_of(published_shards, tmp_path)
    found = [content(next(stream).batch)]
    assert wait_for(lambda: len(kept()) == PIECES, WITHIN_S)
    for path in kept():
        poison(path)
    found += [content(each.batch) for each in islice(stream, BATCHES - 1)]
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
    loader, published_shards, expected, server, tmp_path, monkeypatch
):
    source = module(published_shards, tmp_path, loader=loader, shuffle_run=0).source("train")
    monkeypatch.setattr(server, "objects", WrongAtFirst(server.objects))
    assert served(source, 1) == expected[:1]
    server.objects.wrong = 1
    assert served(source, BATCHES) == expected
    assert not server.objects.wrong


def test_bytes_that_stay_wrong_are_an_error_that_names_the_member(
    published_shards, server, tmp_path, monkeypatch
):
    source = module(published_shards, tmp_path, loader=ROOMY, shuffle_run=0).source("train")
    monkeypatch.setattr(server, "objects", WrongAtFirst(server.objects))
    server.objects.wrong = 10**9
    with pytest.raises(DamagedShardError, match=r"shard-00000\d.tar.*crc32"):
        served(source, BATCHES)
