"""The joins of a split, found by their settings, and what their tables hold."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.row_tables import ParquetFile, ParquetTable
from lightning_shards.shards.joins.settings import JoinSettings
from lightning_shards.shards.joins.table_files import (
    TableFile,
    content_digest,
    find_table_files,
    parquet_footer,
)
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import MakeStorage, Storages

JOIN_PREFIX: Final = "join "
"""Begins the names of joins among the values that a checkpoint is compared by."""


@dataclass(frozen=True, slots=True)
class Join:
    """One join of a split, whose table has been looked at.

    Attributes:
        settings: As they were given.
        files: The files of the table, with their checksums.
        column: The column whose values are taken; of tars the suffix.
        kind: How the values of a Parquet table are kept, see `arrow_values`; empty for tars.
        storages: What reads remote files, by scheme.
    """

    settings: JoinSettings
    files: tuple[TableFile, ...]
    column: str
    kind: str
    storages: Mapping[str, MakeStorage] | None = field(default=None, compare=False, repr=False)

    @property
    def digest(self) -> str:
        """16 hex digits over what is in the table, wherever it lies."""
        return content_digest(self.files)

    @property
    def where(self) -> str:
        """Its files, for messages."""
        more = len(self.files) - 1
        return self.files[0].name + (f" and {more:,} more" if more else "")


def find_join(
    settings: JoinSettings, cache: CacheFolder, storages: Mapping[str, MakeStorage] | None = None
) -> Join:
    """The join with these settings; remote files of its table are read by these storages.

    Raises:
        ConfigError: The table has not the columns, or they hold what cannot be taken.
        ShardError: A file of the table does not exist or cannot be read.
    """
    with closing(Storages(storages)) as opened:
        files = find_table_files(settings, opened, cache)
        footer = b""
        if files[0].is_remote and not settings.is_tar:
            footer = parquet_footer(files[0].path, files[0].size, opened)
    return Join(settings, files, *_column_and_kind(settings, files, footer), storages)


@lru_cache(maxsize=64)
def _column_and_kind(
    settings: JoinSettings, files: tuple[TableFile, ...], footer: bytes
) -> tuple[str, str]:
    """The column and the kind of its values; of a remote table as the first footer says."""
    if settings.is_tar:
        return settings.column or "", ""
    named = [ParquetFile(file.name, footer or file.path) for file in files]
    table = ParquetTable(settings, named[:1] if footer else named)
    return table.column, table.kind


@dataclass(frozen=True, slots=True)
class JoinedShards:
    """Shards of a split whose samples have joins: all of them, or those of a component of a mix.

    Attributes:
        joins: Of these shards.
        index: These shards.
        first_shard: The number that the first of them has in the split.
        component: Its name, for messages; empty if they are all shards of the split.
    """

    joins: tuple[Join, ...]
    index: ShardIndex
    first_shard: int = 0
    component: str = ""


def joins_identity(joins: Iterable[Join], component: str = "") -> dict[str, str]:
    """The contents of the tables, by names that begin with `JOIN_PREFIX`."""
    of = f"{component}." if component else ""
    return {f"{JOIN_PREFIX}{of}{join.settings.name}": join.digest for join in joins}


def component_of_join(name: str) -> str | None:
    """The component of a mixture of which a name in `joins_identity` is; None: of none.

    >>> component_of_join("join web.text"), component_of_join("seed")
    ('web', None)
    """
    if not name.startswith(JOIN_PREFIX):
        return None
    component, is_of_one, _ = name.removeprefix(JOIN_PREFIX).partition(".")
    return component if is_of_one else None
