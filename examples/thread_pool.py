"""python examples/thread_pool.py: a pool of one thread, which loads while the model computes."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import lightning_shards as ls
from lightning_shards.workers.inline import produce


@dataclass(frozen=True)
class OneThread:
    """Keeps some batches ready, which a single thread makes."""

    ready: int = 2

    def describe(self) -> ls.PoolDescription:
        """For monitors and tools."""
        return ls.PoolDescription("one thread", num_workers=1, prefetch_factor=self.ready)

    def start(self, source: ls.Source, place: ls.Place, cursor: ls.Cursor) -> "OneThreadStream":
        """Begin at the cursor: the thread is worker 0 of 1."""
        if source.describe().draws_from_globals:
            raise ls.ConfigError("the thread would draw from the random generators of the model")
        return OneThreadStream(produce(source, place.with_worker(0, 1), cursor), self.ready)


class OneThreadStream:
    """The batches in their order, until it is closed."""

    def __init__(self, batches: Generator[ls.LoadedBatch], ready: int) -> None:
        self._batches, self._thread = batches, ThreadPoolExecutor(1)
        self._ready = deque(self._thread.submit(next, batches) for _ in range(ready))

    def __next__(self) -> ls.LoadedBatch:
        if not self._ready:
            raise StopIteration
        try:
            batch = self._ready.popleft().result()
        except BaseException:
            self.close()
            raise
        self._ready.append(self._thread.submit(next, self._batches))
        return batch

    def close(self) -> None:
        """End the thread after the batch that it makes, then what the source has open."""
        self._ready.clear()
        self._thread.shutdown(cancel_futures=True)
        self._batches.close()


if __name__ == "__main__":
    from synthetic_source import Waves

    with ls.ShardLoader(Waves(ls.EpochSchedule(100, 8, "drop")), OneThread()) as loader:
        print(f"{len(loader)} steps of {sum(len(each['label']) for each in loader)} samples")
