"""python sharing_processes.py SETTINGS: processes of a node that fetch from one server.

The settings are a JSON object with the fields of `Settings`. Each process is forked, reads its
batches, compares every byte, and says what it fetched; the output is one JSON object for each.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from held_transport import cache_in

from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.ahead.fetch_ahead import FetchAhead
from lightning_shards.readers.ahead.piece_plan import PiecePlan
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.remote.cache.piece_files import Piece
from lightning_shards.shards.remote.fetcher import Fetcher
from lightning_shards.shards.remote.open_pieces import ObjectReads
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings

SHARDS, SAMPLES, SIZE, HEADER = 6, 64, 1500, 512
RUN, BLOCK, BATCH = 8, 64, 4
WITHIN_S = 30


@dataclass
class Settings:
    folder: str
    base_url: str
    processes: int
    limit_bytes: int
    kill_at: int = 0  # which of its requests process 0 is killed in the middle of
    steps: int = 0  # batches of each process; 0: all pieces are waited for, then all bytes are read


def shard_bytes(shard):
    return np.random.default_rng(shard).bytes(SAMPLES * (SIZE + HEADER))


def table_of(shard):
    offsets = HEADER + np.arange(SAMPLES) * (SIZE + HEADER)
    numbers = np.arange(SAMPLES + 1)
    return MemberTable(
        np.empty(0, np.uint8), numbers * 0, numbers, offsets, np.full(SAMPLES, SIZE), None,
        np.zeros(SAMPLES, np.uint32), ("jpg",), SAMPLES * (SIZE + HEADER), 1,
    )  # fmt: skip


class MortalTransport(RemoteTransport):
    """Ends its process in the middle of a request; the one before lets the others begin."""

    def __init__(self, given, kill_at, others):
        super().__init__(given)
        self.kill_at, self.others = kill_at, others

    def read(self, url, begin, end, version=None):
        self.kill_at -= 1
        if self.kill_at == 1:
            os.write(self.others, b"go")
        if self.kill_at == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(url, begin, end, version)


class Process:
    def __init__(self, settings: Settings, number: int, first: tuple[int, int]):
        if settings.kill_at and number:
            os.read(first[0], 1)
        policy = RetryPolicy().scaled(0.01)
        kill_at = settings.kill_at if number == 0 else 0
        transport = MortalTransport(
            TransportSettings({}, 8, policy, settings.folder), kill_at, first[1]
        )
        self.urls = [f"{settings.base_url}/{shard}.tar" for shard in range(SHARDS)]
        # all of one version, as a table of each shard would tell
        self.versions = [transport.read(url, 0, 0).version for url in self.urls]
        self.transport, self.settings, self.number = transport, settings, number
        self.cache = cache_in(Path(settings.folder), settings.limit_bytes)
        self.fetcher = Fetcher(transport, self.cache, threads=1 if settings.kill_at else 2)
        self.bytes = [shard_bytes(shard) for shard in range(SHARDS)]
        place = Place(number, settings.processes)
        self.order = SampleOrder(np.full(SHARDS, SAMPLES), 1, "shuffled", RUN, BLOCK)
        self.epochs = EpochSchedule(SHARDS * SAMPLES, BATCH, "drop")
        ranks = range(settings.processes)
        tables = list(map(table_of, range(SHARDS)))
        self.plan = PiecePlan(
            self.order, self.epochs, Cursor(), place, ranks, self.urls,
            lambda shards: [tables[shard] for shard in shards], window=1,
        )  # fmt: skip

    def pieces(self, reads):
        versions = dict(zip(self.urls, self.versions, strict=True))
        return [Piece(read.url, versions[read.url], *read.starts, *read.stops) for read in reads]

    def fetch_ahead(self, reads):
        self.fetcher.fetch_ahead(self.pieces(reads))

    def check(self, ids):
        """Read these samples as one batch, and compare their bytes."""
        reads, wanted = [], []
        for shard in sorted({shard for shard, _ in ids}):
            samples = sorted(sample for of, sample in ids if of == shard)
            starts = [HEADER + sample * (SIZE + HEADER) for sample in samples]
            stops = [start + SIZE for start in starts]
            into = memoryview(bytearray(SIZE * len(samples)))
            reads.append(ObjectReads(self.urls[shard], self.versions[shard], starts, stops, into))
            data = self.bytes[shard]
            spans = zip(starts, stops, strict=True)
            wanted.append(b"".join(data[start:stop] for start, stop in spans))
        counts = self.fetcher.read(reads)
        assert all(count == SIZE for each in counts for count in each)
        assert [bytes(read.into) for read in reads] == wanted

    def read_what_was_shared(self):
        """Wait until all pieces of the epoch are in the cache, whoever fetches them."""
        blocks = self.plan._blocks()
        pieces = []
        for _ in range(SHARDS * SAMPLES // BLOCK):
            pieces += self.pieces(next(blocks)[0].reads)
        self.fetcher.read([])  # from the first batch on there is fetching ahead
        self.fetcher.fetch_ahead(pieces)
        end = time.perf_counter() + WITHIN_S
        while not all(map(self.cache.open, pieces)):
            assert time.perf_counter() < end
            time.sleep(0.01)
        self.check([(shard, sample) for shard in range(SHARDS) for sample in range(SAMPLES)])

    def read_batches(self):
        ahead = FetchAhead(self.plan.announcements, self)
        steps = iter(range(self.settings.steps))
        for turn, epoch in enumerate(self.epochs.worker_epochs(self.plan.place, Cursor())):
            for step in epoch.own_steps():
                if next(steps, None) is None:
                    ahead.close()
                    return
                start, stop = epoch.plan.rank_span(step, self.number)
                ahead.reach(turn, start)
                self.check(self.order.at(epoch.epoch, start, stop).tolist())
                time.sleep(0.005)  # the model

    def run(self):
        if self.settings.steps:
            self.read_batches()
        else:
            self.read_what_was_shared()
        counts = self.transport.counts
        said = asdict(self.fetcher.counts) | {
            "requests": counts.requests,
            "repeated": counts.repeated,
        }
        self.fetcher.close()
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def start(settings, first, number):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            Process(settings, number, first).run()
            status = 0
        except BaseException:  # noqa: BLE001 the process ends here in any case
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    return pid


def main(settings):
    pids = list(map(partial(start, settings, os.pipe()), range(settings.processes)))
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.stdout.write(json.dumps({"statuses": statuses}) + "\n")


if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])))
