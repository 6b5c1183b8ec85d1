"""What the batches of a stream had to be fetched for, and which part of their time was waiting."""

from collections.abc import Callable, Iterator

from lightning_shards.readers.ahead.fetch_ahead import FetchAhead
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.stage_clock import STAGES
from lightning_shards.shards.storage.fetch_totals import NO_FETCHES, FetchTotals


class FetchMeter:
    """Takes the totals of a stream's storages after each of its batches.

    Args:
        totals: Gives the totals so far, with the waits of the thread that makes the batches.
        ahead: Whom the batches tell where they are, if somebody fetches ahead.
    """

    def __init__(self, totals: Callable[[], FetchTotals], ahead: FetchAhead | None = None) -> None:
        self._totals, self._ahead = totals, ahead
        self._taken, self._announced_s = NO_FETCHES, 0.0

    def each(self, batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
        """The batches; the time in which they waited for bytes from afar counts as `fetch`."""
        for loaded in batches:
            yield self._measured(loaded)

    def _measured(self, loaded: LoadedBatch) -> LoadedBatch:
        totals = self._totals()
        fetched, self._taken = totals.since(self._taken), totals
        if fetched == NO_FETCHES:
            return loaded
        stages = dict(zip(STAGES, loaded.stages, strict=False))
        stages["open"] = max(0.0, stages["open"] - fetched.table_wait_s)
        stages["read"] = max(0.0, stages["read"] - fetched.member_wait_s)
        if self._ahead is not None:  # no stage is timed while it is waited for
            announced_s, self._announced_s = self._announced_s, self._ahead.waited_s
            wait_s = fetched.table_wait_s + self._announced_s - announced_s
            fetched = fetched._replace(table_wait_s=wait_s)
        return loaded._replace(stages=(*stages.values(), fetched.wait_s), fetched=fetched)
