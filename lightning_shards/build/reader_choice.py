"""The choice of a split's reader, by what is asked for and by what lies beside its shards."""

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from lightning_shards.errors import ConfigError, StorageError
from lightning_shards.remote.backend import LOOK_UP, TransportSettings
from lightning_shards.remote.storage import remote_storages
from lightning_shards.shards.counts import load_index, remote_class_files, shards_listed
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.published_tables import absence, index_command, published_url
from lightning_shards.shards.scheme_table import SCHEMES, has_ranges
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact, scheme_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """What the reader of a split depends on beside its shards.

    Attributes:
        split: Name of the split, for messages.
        reader: The reader that is asked for; `auto` takes `indexed` where it can read the shards.
        sampling: Name of the sampling.
        has_stages: Whether there are stages, which need a stream.
        patterns: The shards as the user names them, joined, for messages.
    """

    split: str
    reader: Literal["auto", "stream", "indexed"]
    sampling: str
    has_stages: bool
    patterns: str = "URLS"

    def why_streamed(self, index: ShardIndex) -> str:
        """Why these shards are read by the stream reader; empty if by the indexed one.

        Raises:
            ConfigError: The indexed reader is asked for, and cannot read them.
        """
        if self.reader == "stream":
            return "of reader='stream'"
        what, remedy = self._obstacle(index)
        if what and self.reader == "indexed":
            raise ConfigError(
                f"reader='indexed' of {self.split!r} reads samples by their offsets, and the split "
                f"{what}; {remedy}, or take reader='stream'"
            )
        return what and f"{self.split} {what}"

    def _obstacle(self, index: ShardIndex) -> tuple[str, str]:
        """What keeps the indexed reader from these shards, and the remedy."""
        remote = _one_of_each_scheme(index.urls)
        streamed = next((url for url in remote if not has_ranges(url)), "")
        made = f"{index_command(self.patterns)} makes them"
        obstacles = {
            ("has stages", "use transforms"): self.has_stages,
            (f"has {redact(streamed)}, which can only be streamed", "copy it"): streamed,
            ("has no counts of samples beside its shards", made): index.counts is None,
            ("is remote, without member tables beside it", made): remote and not index.has_tables,
        }
        return next((obstacle for obstacle, is_there in obstacles.items() if is_there), ("", ""))

    def find(
        self,
        urls: Sequence[str],
        cache: CacheFolder,
        settings: TransportSettings,
        *,
        wants_total: bool = False,
        wants_classes: bool = False,
    ) -> ShardIndex:
        """The index of these shards, which says whether remote ones have tables, if that matters.

        Args:
            urls: Expanded urls of the shards.
            cache: Where counts and tables are kept.
            settings: How remote shards are reached.
            wants_total: As of `load_index`.
            wants_classes: Whether a field needs the classes that lie beside the shards.

        Raises:
            ShardError: The shards or what `indexed` needs cannot be found.
        """
        with closing(Storages(remote_storages(replace(settings, policy=LOOK_UP)))) as storages:
            urls = [shard for url in urls for shard in shards_listed(url, storages)]
            remote = _one_of_each_scheme(urls)
            index = load_index(urls, cache=cache, wants_total=wants_total, storages=storages)
            is_exact = self.reader == "indexed" or self.sampling != "resampled"
            if index.counts is None and (is_exact or (wants_total and index.total is None)):
                for url in filter(has_ranges, remote[:1]):  # perhaps its URL is wrong
                    storages.of(url).stat(url)
            if self._may_need_tables(index, remote):
                index = self._with_tables_found(index, remote[0], cache, storages)
            if wants_classes:
                index = replace(index, class_files=remote_class_files(urls, storages))
        return index

    def _may_need_tables(self, index: ShardIndex, remote: Sequence[str]) -> bool:
        """Whether its tables decide the reader: there are counts and ranges, and no stages."""
        can_be = self.reader != "stream" and not self._obstacle(replace(index, has_tables=True))[0]
        return can_be and bool(remote)

    def _with_tables_found(
        self, index: ShardIndex, url: str, cache: CacheFolder, storages: Storages
    ) -> ShardIndex:
        """The index, for which the table of the first remote shard stands for those of all.

        What is kept of a run before decides nothing under `auto`, or two machines would choose two
        readers.
        """
        has_tables, is_asked_for = False, self.reader == "indexed"
        try:
            store = TableStore(cache, storages=storages)
            has_tables = is_published(url, store, storages, or_kept=is_asked_for)
        except StorageError as error:
            if is_asked_for:
                raise
            _log.warning("%s: no member table of a shard can be had: %s", self.split, error)
        if is_asked_for and not has_tables:
            raise ConfigError(f"{self.split}: {absence(url, self.patterns)}")
        taken = "the stream reader, because there are no member tables beside %s; %s makes them"
        if has_tables:
            taken = "the indexed reader, by the member tables beside %s, which %s makes"
        about = redact(url), index_command(self.patterns)
        _log.info(f"%s: reader=%r takes {taken}", self.split, self.reader, *about)
        return replace(index, has_tables=has_tables)


def _one_of_each_scheme(urls: Sequence[str]) -> list[str]:
    """The first remote shard of each scheme; there may be 10^6 shards."""
    firsts: dict[str, str] = {}
    for url in urls:
        firsts.setdefault(scheme_of(url), url)
    return [url for url in firsts.values() if not is_local(url)]


def is_published(url: str, store: TableStore, storages: Storages, *, or_kept: bool = False) -> bool:
    """Whether there is a table beside this remote shard, which is then kept in the store.

    With `or_kept` one that is kept is enough.

    Raises:
        ShardError: There is one that cannot be used, or no answer.
    """
    is_there = or_kept and not store.missing([url])
    if is_there or storages.of(url).read_beside([published_url(url)], 1)[0][0] is not None:
        store.fetch([url])
        return True
    return False


def require_forkable(urls: Sequence[str]) -> None:
    """Refuse to fork workers that read by a client which does not survive a fork.

    Raises:
        ConfigError: Some shards are read by such a client.
    """
    for scheme in map(scheme_of, _one_of_each_scheme(urls)):
        if scheme in SCHEMES and SCHEMES[scheme].client == "cloud":
            raise ConfigError(
                f"multiprocessing_context='fork' does not go with {scheme}:// shards, whose client "
                "does not survive a fork; take 'forkserver' or 'spawn'"
            )


def choose_reader(
    choices: Sequence[ReaderChoice], indexes: Sequence[ShardIndex], *, is_mixture: bool
) -> Literal["stream", "indexed"]:
    """The one reader of these components, or of the one data set that is no mixture.

    Raises:
        ConfigError: One cannot be read by the reader that is asked for, or serves each sample once
            and the mixture has to be streamed.
    """
    of_each = zip(choices, indexes, strict=True)
    reasons = [why for choice, index in of_each if (why := choice.why_streamed(index))]
    if not reasons:
        return "indexed"
    for choice in choices if is_mixture else ():
        if choice.sampling != "resampled":
            raise ConfigError(
                f"{choice.split} has sampling={choice.sampling!r}, and a mixture that is streamed "
                f"cannot serve each sample once a pass; it is streamed because {reasons[0]}: take "
                "sampling='resampled' for it, or make all components local or put member tables "
                "beside them, without stages"
            )
    return "stream"
