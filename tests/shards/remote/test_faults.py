"""Each fault of a server or a network, at several positions, over every scheme: its owed behaviour.

All times of the policy are divided by 100; the servers are real, and so are the pauses.
"""

import pytest
from fault_server import Fault
from fault_table import FACES

from lightning_shards.errors import IndexMismatchError
from tests.shards.remote.conftest import url_of
from tests.shards.remote.contract import DATA

pytestmark = pytest.mark.network


BEGIN, END = 1_000, 90_000
POSITIONS = (0, 1, 44_000, END - BEGIN - 1)


@pytest.fixture(params=FACES)
def face(request):
    return request.param


@pytest.fixture
def read(face, server, make_transport):
    """Reads the range by this scheme, once the store has the object."""
    server.objects["data/a.tar"] = DATA
    transport = make_transport()
    url = url_of(server, face, "a.tar")

    def read(version=None, begin=BEGIN, end=END):
        return transport.read(url, begin, end, version)

    read.counts = lambda: transport.counts
    return read


def requests(server):
    """The requests that reached the store's objects, behind hubs and gateways."""
    port = server.asked[-1].port
    return [each for each in server.asked if each.port == port]


@pytest.mark.parametrize("position", POSITIONS)
def test_a_body_that_breaks_goes_on_from_the_break(position, read, server):
    server.faults = [Fault("cut", position)]
    assert read().data == DATA[BEGIN:END]
    last = requests(server)[-1].headers
    assert last["range"] == f"bytes={BEGIN + position}-{END - 1}"
    assert last["if-match"] == server.etag("data/a.tar")


def test_without_an_etag_a_body_that_breaks_begins_anew(face, read, server):
    if face in ("gs", "az"):
        return  # obstore takes no answer of theirs without an ETag
    server.has_etags = False
    server.faults = [Fault("cut", 44_000)]
    assert read().data == DATA[BEGIN:END]
    assert requests(server)[-1].headers["range"] == f"bytes={BEGIN}-{END - 1}"


def test_one_of_the_same_version_and_another_size_is_an_error(read, server):
    longer = f"bytes {BEGIN + 44_000}-{END - 1}/{len(DATA) + 1}"
    server.faults = [Fault("cut", 44_000), Fault("headers", None, (("Content-Range", longer),))]
    with pytest.raises(IndexMismatchError, match=f"{len(DATA) + 1} bytes"):
        read()
