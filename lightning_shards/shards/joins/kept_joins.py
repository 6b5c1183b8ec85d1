"""What is kept of joins: made once for a node, and opened to be read.

What is kept lies in the folder `joins` of the cache, under a name made of the contents of the table
and the list of shards. It holds while the shards have the sizes and times of change that they had
when their keys were matched.
"""

import logging
import shutil
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from lightning_shards.errors import ConfigError, FileAccessError, ShardError, count_of
from lightning_shards.shards.files import locked_file, new_file, not_written
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.finding import Join, JoinedShards
from lightning_shards.shards.joins.kept_file import (
    JoinFacts,
    KeptJoin,
    ShardKeys,
    UnusableJoinError,
    open_kept_join,
    write_join,
)
from lightning_shards.shards.joins.row_tables import ParquetFile, ParquetTable, TarTable, key_chunks
from lightning_shards.shards.joins.settings import JoinTable
from lightning_shards.shards.joins.table_files import (
    have_changed,
    linked_copies,
    remove_copies,
)
from lightning_shards.shards.members import ENCODING
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore, release_pages
from lightning_shards.shards.urls import split_url

_FETCHED_TOGETHER: Final = 256
_FILE_MODE: Final = 0o600

_log = logging.getLogger(__name__)


def prepare_joins(joined: Iterable[JoinedShards], cache: CacheFolder, store: TableStore) -> None:
    """Make on this node what is kept of these joins; raises what `KeptJoins.prepare` does."""
    shards = list(joined)
    with without_copies([join for each in shards for join in each.joins], cache):
        for each in shards:
            for join in each.joins:
                KeptJoins(each.index, cache, store, each.component).prepare(join)


@contextmanager
def without_copies(joins: Iterable[Join], cache: CacheFolder) -> Generator[None, None, None]:
    """A context at whose end the copies of remote tables are removed."""
    try:
        yield
    finally:
        files = (file for join in joins for file in join.files)
        remove_copies((file.path for file in files if file.is_remote), cache)


class KeptJoins:
    """What is kept of the joins of one split, or of one component of a mix.

    Args:
        index: The shards, with their counts.
        cache: Where it is kept.
        store: The member tables of the shards.
        component: The name of the component, for messages; empty for a split.
    """

    def __init__(
        self, index: ShardIndex, cache: CacheFolder, store: TableStore, component: str = ""
    ) -> None:
        self._index, self._cache, self._store = index, cache, store
        self._component = component

    def prepare(self, join: Join) -> None:
        """Make what is kept of a join unless it is there, whole and of these shards.

        Samples without a value and rows without a sample are logged.

        Raises:
            ConfigError: Values are missing and may not, or the join cannot be made.
            ShardError: A shard or the table cannot be read.
        """
        kept = self._opened(join, is_checked=True) or self.renewed(join)
        facts = self._require_values(join, kept)
        self._log_lacking(join, facts)

    def open(self, join: Join) -> KeptJoin:
        """The kept join, which is made if it is not there; raises what `prepare` does."""
        kept = self._opened(join)
        if kept is None:
            with self._alone(join):
                kept = self._opened(join)
                if kept is None:
                    kept = self._made(join)
                    self._log_lacking(join, self._facts(kept))
        self._require_values(join, kept)
        return kept

    def renewed(self, join: Join) -> KeptJoin:
        """The kept join, which is made anew unless it is of the shards as they are now."""
        with self._alone(join):
            kept = self._opened(join, is_checked=True, is_renewed=True)
            return kept or self._made(join)

    def _require_values(self, join: Join, kept: KeptJoin) -> JoinFacts:
        facts = self._facts(kept)
        lacking = facts.without_row + facts.without_value
        if lacking and join.settings.missing == "raise":
            raise ConfigError(
                f"{self._named(join)}: {lacking:,} of "
                f"{count_of(facts.num_samples, 'sample')} have no value in {join.where}, first "
                f"{facts.lacking}; add rows for them, or set missing: none, which gives them "
                "None or their default"
            )
        return facts

    def _named(self, join: Join) -> str:
        of = f" of component {self._component!r}" if self._component else ""
        return f"join {join.settings.name!r}{of}"

    def _log_lacking(self, join: Join, facts: JoinFacts) -> None:
        """Say in one line how many samples have no value, and how many rows no sample."""
        remarks: list[str] = []
        if facts.without_row or facts.without_value:
            remarks.append(
                f"of {count_of(facts.num_samples, 'sample')} {facts.without_row:,} have no row and "
                f"{facts.without_value:,} a row without a value, first {facts.lacking}: they get "
                "None or the default of the field"
            )
        if facts.unmatched:
            of = " of this component" if self._component else ""
            rows = count_of(facts.rows, "row")
            remarks.append(f"of {rows} {facts.unmatched:,} match no sample{of}")
        if remarks:
            _log.warning("%s with %s: %s", self._named(join), join.where, "; ".join(remarks))

    def _facts(self, kept: KeptJoin) -> JoinFacts:
        """What was counted, over the samples that the filter of the split keeps alone.

        Where there is a filter, samples whose row has no value count as those without a row.
        """
        left, facts = self._index.kept, kept.facts
        if left is None:
            return facts
        num_lacking, first, start = 0, -1, 0
        for shard, total in enumerate(left.totals.tolist()):
            numbers = kept.lacking(start, start + total)
            if len(numbers):
                numbers = np.intersect1d(numbers, left.of_shard(shard), assume_unique=True)
            if len(numbers) and first < 0:
                first = start + int(numbers[0])
            num_lacking, start = num_lacking + len(numbers), start + total
        name = _SplitKeys(self._index, self._store).name(first) if num_lacking else ""
        return replace(
            facts,
            num_samples=left.samples,
            without_row=num_lacking,
            without_value=0,
            lacking=name,
        )

    def _opened(
        self, join: Join, *, is_checked: bool = False, is_renewed: bool = False
    ) -> KeptJoin | None:
        """The kept join; None if it is absent, damaged, or of shards that have changed since."""
        path = self._path(join)
        try:
            kept = open_kept_join(path, self._cache)
            if kept is None or not is_checked:
                return kept
            kept.require_whole()
        except (UnusableJoinError, ValueError, RecursionError) as error:
            level = logging.INFO if is_renewed else logging.WARNING
            _log.log(level, "join %r is made again: %s: %s", join.settings.name, path, error)
            return None
        stamps = [keys.stamp for keys in _SplitKeys(self._index, self._store).shards()]
        return kept if np.array_equal(kept.stamps, np.array(stamps).reshape(-1, 2)) else None

    def _made(self, join: Join) -> KeptJoin:
        path, began = self._path(join), time.monotonic()
        self._require_same_table(join)
        _log.info("join %r: %s is read twice", join.settings.name, join.where)
        keys = _SplitKeys(self._index, self._store)
        try:
            with (
                TemporaryDirectory(prefix=f"{path.stem}.", dir=path.parent) as scratch,
                _opened_table(join, self._cache, Path(scratch)) as table,
                new_file(path, mode=_FILE_MODE) as file,
            ):
                write_join(file, join.settings.name, table, keys)
                self._require_same_table(join)
        except OSError as error:
            if isinstance(error, ShardError):
                raise
            raise not_written(path, error) from error
        kept = self._opened(join)
        if kept is None:
            raise FileAccessError(f"{path} was written a moment ago and is gone; start again")
        facts = kept.facts
        what = "join %r: %s and %s matched in %.1f s; values of %s bytes are kept in %s"
        rows, samples = count_of(facts.rows, "row"), count_of(facts.num_samples, "sample")
        seconds = time.monotonic() - began
        _log.info(what, join.settings.name, rows, samples, seconds, f"{facts.data_bytes:,}", path)
        return kept

    def _require_same_table(self, join: Join) -> None:
        if have_changed(join.files, self._cache):
            raise ConfigError(
                f"join {join.settings.name!r}: {join.where} changed after the run had looked at "
                "it; start again"
            )

    @contextmanager
    def _alone(self, join: Join) -> Generator[None, None, None]:
        """A context in which no other process or thread makes this join, where files have locks."""
        path = self._path(join)
        try:
            self._cache.make_folder(path.parent)
        except OSError as error:
            raise not_written(path.parent, error) from error
        with locked_file(path.with_suffix(".lock")):
            for left in path.parent.glob(f"{path.stem}.*/"):  # by a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            yield

    def _path(self, join: Join) -> Path:
        digest = sha256(f"{join.digest}\0{join.settings.key}\0{join.column}\0{join.kind}".encode())
        for url in self._index.urls:
            digest.update(str(self._cache.sidecar_of(url)).encode("utf-8", "surrogateescape"))
        digest.update(self._index.fingerprint().encode())
        return self._cache.root / "joins" / f"{digest.hexdigest()[:24]}.join"


@contextmanager
def _opened_table(join: Join, cache: CacheFolder, scratch: Path) -> Generator[JoinTable]:
    """The table of a join; copies of remote files are below `scratch`."""
    settings, files = join.settings, join.files
    remote = [(file.path, file.size, file.crc32) for file in files if file.is_remote]
    with (
        closing(Storages(join.storages)) as storages,
        linked_copies(remote, storages, cache, scratch) as copies,
    ):
        copy = iter(copies)
        paths = [next(copy) if file.is_remote else file.path for file in files]
        if settings.is_tar:
            # the member tables of copies go with them
            yield TarTable(settings, paths, TableStore(CacheFolder(scratch) if remote else cache))
            return
        table = ParquetTable(settings, [ParquetFile(path, path) for path in paths])
        if (table.column, table.kind) != (join.column, join.kind):
            raise ConfigError(
                f"join {settings.name!r}: the files of {join.where} hold other columns than the "
                "first one of them; write all of them with one schema"
            )
        yield table


class _SplitKeys:
    """The keys of the samples of a split, from the member tables of its shards."""

    def __init__(self, index: ShardIndex, store: TableStore) -> None:
        assert index.counts is not None  # the reader's choice sees to it
        self._urls, self._counts, self._store = index.urls, index.counts, store
        self.num_samples = int(index.counts.sum())

    def shards(self) -> Iterator[ShardKeys]:
        """The keys of one shard after the other."""
        for shard, url in enumerate(self._urls):
            if shard % _FETCHED_TOGETHER == 0:
                self._store.fetch(self._urls[shard : shard + _FETCHED_TOGETHER])
            table = self._store.table_of(url, expected_samples=int(self._counts[shard]))
            yield ShardKeys(key_chunks(table), table.stamp)
            release_pages(table)

    def name(self, sample: int) -> str:
        """The key and the id of one sample, by its number among all."""
        stops = np.cumsum(self._counts)
        shard = int(np.searchsorted(stops, sample, side="right"))
        number = sample - int(stops[shard] - self._counts[shard])
        key = self._store.table_of(self._urls[shard]).key(number)
        shown = key.encode(*ENCODING).decode(errors="replace")
        return f"{shown!r} (#{split_url(self._urls[shard])[1]}:{number})"
