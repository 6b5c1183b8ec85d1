"""24 faults at six positions over http, https and s3: the right bytes or the owed error, in time.

They strike a range that is read, and a stream of a shard, in its first range and in a later one.
All times of the policy are divided by 100. The clock runs with the real one, and pauses pass on it
at once. A fifth of the cells is drawn by a seed; `-m matrix` runs all of them.
"""

import io
import tarfile
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from fault_table import (
    POSITIONS,
    READERS,
    ROWS,
    SCHEMES,
    bytes_before,
    drawn_positions,
    strike,
)

from lightning_shards.readers.stream_stages import read_shard
from lightning_shards.remote import storage as remote_storage
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.remote.storage import RemoteStorage
from lightning_shards.remote.transport import RemoteTransport
from lightning_shards.shards.storage.schemes import Storages
from tests.remote.conftest import QUICK, options_of, url_of
from tests.remote.published import DATA

pytestmark = pytest.mark.network

BEGIN, END = 1_000, 90_000
FIRST = 40_000
SAMPLES = [{"__key__": f"{each:03d}", "bin": DATA[each : each + 4_000]} for each in range(20)]


def tar_of(samples):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for sample in samples:
            info = tarfile.TarInfo(f"{sample['__key__']}.bin")
            info.size = len(sample["bin"])
            tar.addfile(info, io.BytesIO(sample["bin"]))
    return file.getvalue()


TAR = tar_of(SAMPLES)
POLICY = replace(QUICK, total_s=6.0)  # a machine that is held for a second uses up no tries
SLACK_S = 2.0


class Clock:
    """The time that passes, and the pauses that nobody waits for."""

    def __init__(self):
        self.paused_s = 0.0

    def now(self):
        return time.perf_counter() + self.paused_s

    def sleep(self, seconds):
        self.paused_s += seconds


@pytest.fixture(scope="module")
def servers(started_server, tls_server):
    return {"http": started_server, "https": tls_server[0], "s3": started_server}


@pytest.fixture
def server(servers, scheme):
    return servers[scheme]


@pytest.fixture(scope="module")
def clock():
    return Clock()


@pytest.fixture(scope="module")
def transport(servers, tls_server, clock):
    """One for all cells, as for all ranges of a run."""
    options = {**options_of(servers["s3"]), "https": {"ca": tls_server[1]}}
    settings = TransportSettings(options, 64, POLICY)
    transport = RemoteTransport(settings, now=clock.now, sleep=clock.sleep)
    yield transport
    transport.close()


@pytest.fixture(scope="module")
def storages(transport):
    """Streams of two ranges, the second of which is asked for when the first is there."""
    makers = dict.fromkeys(SCHEMES, lambda: RemoteStorage(transport, 1))
    with closing(Storages(makers)) as made, pytest.MonkeyPatch.context() as patching:
        patching.setattr(remote_storage, "_FIRST_BYTES", FIRST)
        yield made


def require_range(transport, url, row, scheme, position, server):
    server.objects["data/a.tar"] = DATA
    stat = transport.read(url, 0, 0).stat
    strike(server, row, bytes_before(position, END - BEGIN))
    owed = row.owed_over(scheme)
    if owed is None:
        body = transport.read(url, BEGIN, END, stat)
        assert (body.data, body.stat) == (DATA[BEGIN:END], stat), position
        return
    with pytest.raises(owed.error, match=owed.message) as caught:
        transport.read(url, BEGIN, END, stat)
    require_told(caught, owed, position)


def require_stream(storages, are_all, url, row, scheme, position, server):
    """Read a shard while a fault strikes its second range, or the first one, or both in turn.

    What is another version is unknown before anything has arrived.

    Returns:
        How often it was read.
    """
    in_turn = [True, False] if bytes_before(position, FIRST) else [True]
    for is_second in in_turn if are_all else in_turn[-1:]:
        server.objects["data/a.tar"] = TAR
        size = len(TAR) - FIRST if is_second else FIRST
        strike(server, row, bytes_before(position, size), sound=int(is_second))
        owed, found = row.owed_over(scheme), []
        if owed is None:
            found += read_shard(url, len(SAMPLES), storages=storages)
            assert found == samples_at(url), position
            continue
        with pytest.raises(owed.error, match=owed.message) as caught:
            found.extend(read_shard(url, len(SAMPLES), storages=storages))
        assert found == samples_at(url)[: len(found)], position
        require_told(caught, owed, position)
        server.reset()
    return len(in_turn)


def require_told(caught, owed, position):
    assert caught.type is owed.error, position
    assert "s3cr3t" not in str(caught.value)


def samples_at(url):
    return [sample | {"__url__": url} for sample in SAMPLES]


@pytest.fixture
def readers(transport, storages, request):
    are_all = request.node.get_closest_marker("matrix") is not None
    stream = partial(require_stream, storages, are_all)
    return {"indexed": partial(require_range, transport), "stream": stream}


@pytest.mark.parametrize("positions", ["drawn", pytest.param("all", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_fault_is_answered_as_is_owed(row, scheme, reader, positions, server, readers, clock):
    for position in POSITIONS if positions == "all" else drawn_positions(row, scheme, reader):
        server.reset()
        began, url = clock.now(), url_of(server, scheme, "a.tar")
        times = readers[reader](url, row, scheme, position, server) or 1
        assert clock.now() - began <= times * POLICY.total_s + SLACK_S, position
