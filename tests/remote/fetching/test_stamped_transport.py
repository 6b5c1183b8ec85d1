"""Objects whose version is known by size and number alone."""

import zlib

import pytest
from held_transport import HeldTransport

from lightning_shards.errors import IndexMismatchError
from lightning_shards.remote.transport import (
    StampedTransport,
    version_of_stamp,
)


def number_of(version):
    return zlib.crc32(version.encode())


@pytest.fixture
def below():
    """What is asked, with the versions that it is told."""
    transport = HeldTransport({"s3://b/u?sig=s3cr3t": bytes(range(100))}, '"v"')
    transport.told = []
    read = transport.read

    def noted(url, begin, end, version=None):
        transport.told.append(version)
        return read(url, begin, end, version)

    transport.read = noted
    return transport


URL = "s3://b/u?sig=s3cr3t"
STAMP = version_of_stamp((100, number_of('"v"')))


def test_the_store_is_told_the_version_from_the_second_request_on(below):
    stamped = StampedTransport(below, number_of)
    assert stamped.read(URL, 5, 9, STAMP).data == bytes(range(5, 9))
    body = stamped.read(URL, 0, 3, STAMP)
    assert (body.version, body.size) == (STAMP, 100)
    assert below.told == [None, '"v"']


def test_what_the_stamp_is_can_be_asked(below):
    assert StampedTransport(below, number_of).read(URL, 0, 0).version == STAMP
    assert StampedTransport(below, number_of).read(URL, 0, 0).size == 100


@pytest.mark.parametrize("stamp", [(100, 1), (99, number_of('"v"'))])
def test_another_object_is_refused_by_both_stamps(below, stamp):
    stamped = StampedTransport(below, number_of)
    with pytest.raises(IndexMismatchError) as raised:
        stamped.read(URL, 0, 9, version_of_stamp(stamp))
    assert version_of_stamp(stamp) in str(raised.value)
    assert STAMP in str(raised.value)
    assert "s3cr3t" not in str(raised.value)


def test_after_a_new_table_the_new_object_is_read(below):
    stamped = StampedTransport(below, number_of)
    stamped.read(URL, 0, 9, STAMP)
    below.version = '"w"'
    new = version_of_stamp((100, number_of('"w"')))
    assert stamped.read(URL, 0, 9, new).version == new
    with pytest.raises(IndexMismatchError, match='"v" was expected, "w" is there'):
        stamped.read(URL, 0, 9, STAMP)


def test_it_is_closed_with_what_it_reads_by(below):
    StampedTransport(below, number_of).close()
    assert below.closed.is_set()
