"""Member tables that could not be written to the cache folder: a bounded number stays in memory."""

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any, Final

from lightning_shards.shards.members import MemberTable

_MOST_UNWRITTEN: Final = 2**28  # bytes: a block of 256 shards with 14,000 samples each


class UnwrittenTables:
    """Tables that were not written, of which the least recently used go; for any thread."""

    def __init__(self, tables: Iterable[tuple[Path, MemberTable]] = ()) -> None:
        self._tables, self._lock = OrderedDict(tables), Lock()
        self._bytes = sum(table.nbytes for table in self._tables.values())

    def get(self, sidecar: Path) -> MemberTable | None:
        """The table that belongs into this file; None if it is not kept."""
        with self._lock:
            if sidecar in self._tables:
                self._tables.move_to_end(sidecar)
            return self._tables.get(sidecar)

    def put(self, sidecar: Path, table: MemberTable | None) -> bool:
        """Keep a table, or None, which is no longer kept; whether one alone is kept."""
        with self._lock:
            old = self._tables.pop(sidecar, None)
            self._bytes -= 0 if old is None else old.nbytes
            if table is not None:
                self._tables[sidecar] = table
                self._bytes += table.nbytes
            while self._bytes > _MOST_UNWRITTEN and len(self._tables) > 1:
                self._bytes -= self._tables.popitem(last=False)[1].nbytes
            return len(self._tables) == 1

    def __reduce__(self) -> tuple[Any, ...]:
        return UnwrittenTables, (list(self._tables.items()),)
