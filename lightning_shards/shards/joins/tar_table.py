"""A table that is a second set of tars: a row is a sample, its value a member."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.shards.joins.rows import RowNumbers, RowValues
from lightning_shards.shards.joins.settings import JoinSettings
from lightning_shards.shards.members import MemberTable, ShardReader
from lightning_shards.shards.tables import TableStore, release_pages

_CHUNK_BYTES: Final = 1 << 22
_MOST_ROWS: Final = 1 << 15
_MOST_NAMED: Final = 50


class TarTable:
    """The samples of tars, of which a few MiB are in memory at a time.

    Args:
        settings: Of the join.
        paths: The tars, in their order.
        store: Lists their members.

    Attributes:
        num_rows: Samples of all tars.

    Raises:
        ConfigError: No member of any tar has the suffix.
        ShardError: A tar is damaged or cannot be read.
    """

    def __init__(self, settings: JoinSettings, paths: Sequence[str], store: TableStore) -> None:
        assert settings.column is not None  # the settings were checked
        self._suffix, self._paths, self._store = settings.column.lower(), paths, store
        self._samples_of: list[int] = []
        suffixes: set[str] = set()
        for path in paths:
            table = store.table_of(path)
            self._samples_of.append(table.num_samples)
            suffixes.update(table.suffixes)
            release_pages(table)
        self.num_rows = sum(self._samples_of)
        if self._suffix not in suffixes:
            raise ConfigError(self._without_members(settings.name, sorted(suffixes)))

    def _without_members(self, name: str, suffixes: Sequence[str]) -> str:
        more = len(self._paths) - 1
        problem = f"join {name!r}: no tar of {self._paths[0]}" + (
            f" and {more:,} more" * bool(more)
        )
        if not suffixes:
            return f"{problem} holds a member; name another table"
        return (
            f"{problem} has members {self._suffix!r}; name one of {suffixes[:_MOST_NAMED]} in "
            "`column`"
        )

    def row_name(self, row: int) -> str:
        """The number of a sample in its tar, counted from 0, and the tar."""
        for path, samples in zip(self._paths, self._samples_of, strict=True):
            if row < samples:
                return f"sample {row:,} of {path}"
            row -= samples
        raise AssertionError(row)

    def keys(self) -> Iterator[RowValues]:
        """The keys of all samples, some at a time."""
        for path in self._paths:
            yield from key_chunks(self._store.table_of(path))

    def chunks(self) -> Iterator["_TarChunk"]:
        """All samples, some at a time."""
        for path in self._paths:
            table = self._store.table_of(path)
            members = table.members_with((self._suffix,))
            # stops: bytes of the members up to each sample, itself included.
            stops = np.cumsum(np.where(members < 0, 0, table.sizes[members]))
            reader = ShardReader(path, table)
            try:
                start = 0
                while start < table.num_samples:
                    done = int(stops[start - 1]) if start else 0
                    stop = int(np.searchsorted(stops, done + _CHUNK_BYTES, side="right"))
                    stop = min(max(stop, start + 1), start + _MOST_ROWS)
                    yield _TarChunk(reader, self._suffix, start, stop, members[start:stop] >= 0)
                    start = stop
            finally:
                reader.close()


def key_chunks(table: MemberTable) -> Iterator[RowValues]:
    """The keys of all samples of a shard, some at a time."""
    for first in range(0, table.num_samples, _MOST_ROWS):
        starts = table.key_starts[first : first + _MOST_ROWS + 1]
        text = table.keys[starts[0] : starts[-1]].tobytes()
        yield [text[a:b] for a, b in pairwise((starts - starts[0]).tolist())]


class _TarChunk:
    def __init__(
        self, reader: ShardReader, suffix: str, start: int, stop: int, has_member: NDArray[np.bool_]
    ) -> None:
        self._reader, self._suffix, self._start = reader, suffix, start
        self._has_member, self.num_rows = has_member, stop - start

    def values(self, rows: RowNumbers) -> RowValues:
        """The members of these samples."""
        return [
            self._reader.read(self._start + row, self._suffix) if self._has_member[row] else None
            for row in rows.tolist()
        ]
