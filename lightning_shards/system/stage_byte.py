"""The byte in which a worker process publishes the stage that it began last, for its trainer.

`samples.stage_clock` names the stages and publishes most of them. What waits for the network lies
below it.
"""

from typing import Final

from lightning_shards.system.cancellation import is_cancellable

FETCH_STAGE: Final = 6
"""The number of the stage in which bytes from afar are waited for."""

_published = [memoryview(bytearray(1))]


def publish_stages_in(byte: memoryview) -> None:
    """Make this process write the stage that began last into this byte from now on; 0: none."""
    _published[0] = byte


def published_byte() -> memoryview:
    """Where it is written."""
    return _published[0]


class Fetching:
    """A context in which bytes from afar are waited for; then the stage before it goes on.

    Threads that only fetch ahead of the batches publish nothing.
    """

    __slots__ = ("_before", "_byte")

    def __enter__(self) -> None:
        self._byte = _published[0] if is_cancellable() else memoryview(bytearray(1))
        self._before = self._byte[0]
        self._byte[0] = FETCH_STAGE

    def __exit__(self, *exception: object) -> None:
        self._byte[0] = self._before
