"""What fetching alone costs: core-seconds per GB and per request, without decoding anything."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import process_time, sleep

from benchmarks.remote.child import Result, scratch
from benchmarks.remote.job import FAST, LINKS, RemoteJob
from benchmarks.remote.loaders import CACHE_GIB
from benchmarks.remote.server import ask
from lightning_shards.remote.cache import CacheNeed, cache_of_run
from lightning_shards.remote.fetcher import Fetcher
from lightning_shards.remote.pieces import Piece
from lightning_shards.remote.request_threads import RequestThreads
from lightning_shards.remote.storage import version_number
from lightning_shards.remote.transport import (
    RemoteTransport,
    StampedTransport,
    TransportSettings,
    version_of_stamp,
)
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.protocol import ShardReads

PIECE, SMALL = 1_300_000, 4_096
PIECES, REQUESTS = 400, 4_000
CONNECTIONS = 32


def run(job: RemoteJob) -> Result:
    """By scheme: pieces to memory and to the cache, and small ranges; beside it, writing alone."""
    job = job.behind(FAST)
    ask(job.control, rate=LINKS[FAST])
    result: Result = {}
    _write_files(result)
    for scheme in ("http", "s3") if find_spec("obstore") else ("http",):
        urls, settings = _reached(job, scheme)
        sizes = [Path(path).stat().st_size for path in job.local_shards]
        pieces = list(_ranges(urls, sizes, PIECE, PIECES))
        small = list(_ranges(urls, sizes, SMALL, REQUESTS))
        with _counted(result, f"{scheme}, to memory, s a GB", _total(pieces) / 1e9):
            _read(settings, pieces)
        with _counted(result, f"{scheme}, small ranges, ms a request", len(small) / 1000):
            _read(settings, small)
        _fetch_ahead(result, scheme, settings, pieces)
    return result


def _reached(job: RemoteJob, scheme: str) -> tuple[list[str], TransportSettings]:
    if scheme == "http":
        return job.shards, TransportSettings(connections=CONNECTIONS + 1)
    endpoint = f"http://127.0.0.1:{job.shaped}"
    options = {"s3": {"endpoint": endpoint, "anonymous": True, "region": "us-east-1"}}
    urls = [f"s3://{job.key_of(path)}" for path in job.local_shards]
    return urls, TransportSettings(options, connections=CONNECTIONS + 1)


def _ranges(
    urls: list[str], sizes: list[int], length: int, most: int
) -> Iterator[tuple[str, int, int]]:
    """Ranges of so many bytes, disjoint as long as there are some left."""
    number = 0
    while number < most:
        shard, turn = number % len(urls), number // len(urls)
        part = min(length, sizes[shard] // 2)  # tiny data has small shards
        begin = turn * part % (sizes[shard] - part)
        yield urls[shard], begin, begin + part
        number += 1


def _total(ranges: list[tuple[str, int, int]]) -> int:
    return sum(end - begin for _, begin, end in ranges)


def _read(settings: TransportSettings, ranges: list[tuple[str, int, int]]) -> None:
    transport = RemoteTransport(settings)
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        for body in threads.map(lambda asked: transport.read(*asked), ranges):
            assert body.data
    transport.close()


def _fetch_ahead(
    result: Result, scheme: str, settings: TransportSettings, ranges: list[tuple[str, int, int]]
) -> None:
    """Pieces as a run fetches them: by the fetcher's threads, to files of the cache."""
    transport = RemoteTransport(settings)
    stamps = {url: _stamp(transport, url) for url in dict.fromkeys(url for url, *_ in ranges)}
    pieces = sorted({Piece(url, stamps[url], begin, end) for url, begin, end in ranges})
    total = sum(piece.size for piece in pieces)
    with scratch() as folder:
        size = CacheNeed("cpu", total, working_set_bytes=total)
        cache = cache_of_run(CacheFolder(folder), "cpu", size, CACHE_GIB)
        stamped, threads = StampedTransport(transport, version_number), RequestThreads(CONNECTIONS)
        fetcher, url = Fetcher(stamped, threads, cache), pieces[0].url
        with _counted(result, f"{scheme}, to the cache, s a GB", total / 1e9):
            fetcher.fetch_ahead(pieces)
            fetcher.read([ShardReads(url, [0], [512], None, memoryview(bytearray(512)))])
            while not fetcher.has_all():
                sleep(0.05)
        fetcher.close()


def _write_files(result: Result) -> None:
    """One write of each piece to a new file, which the way to the cache has in it."""
    data = bytes(PIECE)
    with scratch() as folder, _counted(result, "new files alone, s a GB", PIECES * PIECE / 1e9):
        for number in range(PIECES):
            Path(folder, str(number)).write_bytes(data)


def _stamp(transport: RemoteTransport, url: str) -> str:
    body = transport.read(url, 0, 0)
    return version_of_stamp((body.size, version_number(body.version)))


@contextmanager
def _counted(result: Result, name: str, amount: float) -> Iterator[None]:
    """Note how much CPU this process uses for an amount."""
    begun = process_time()
    yield
    result[name] = (process_time() - begun) / amount
