"""The choice of a split's reader, by what is asked for and by what lies beside its shards."""

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from lightning_shards.errors import ConfigError, StorageError
from lightning_shards.remote.backend import LOOK_UP
from lightning_shards.remote.storage import remote_storages
from lightning_shards.remote.transport import TransportSettings
from lightning_shards.shards.index import (
    ShardIndex,
    load_index,
    remote_class_files,
)
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.scheme_table import SCHEMES
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.tables import TableStore, absence, index_command
from lightning_shards.shards.urls import is_local, redact, scheme_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """What the reader of a split depends on beside its shards.

    Attributes:
        split: Name of the split, for messages.
        reader: The reader that is asked for; `auto` leaves the choice to the package.
        sampling: Name of the sampling.
        has_stages: Whether there are stages, which need a stream.
        patterns: The shards as the user names them, joined, for messages.
    """

    split: str
    reader: Literal["auto", "stream", "indexed"]
    sampling: str
    has_stages: bool
    patterns: str = "URLS"

    def of(self, index: ShardIndex) -> Literal["stream", "indexed"]:
        """The reader of these shards.

        `auto` takes `stream` if there are stages, or a shard is remote and no member tables of such
        shards lie beside them.

        Raises:
            ConfigError: The reader cannot read them.
        """
        remote = _one_of_each_scheme(index.urls)
        streams = self.has_stages or (remote and not index.has_tables)
        if self.reader == "stream" or (self.reader == "auto" and streams):
            return "stream"
        self._require_ranges(remote, index)
        if self.has_stages:
            raise ConfigError(
                f"stages of {self.split!r} are for reader='stream', where samples come one after "
                "the other; use transforms, or take reader='stream'"
            )
        return "indexed"

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
            ShardError: The shards cannot be found or counted; or they are remote, the reader is
                `indexed`, and they have no tables.
        """
        looking_up = replace(settings, policy=LOOK_UP)
        with closing(Storages(remote_storages(looking_up))) as storages:
            index = load_index(urls, cache=cache, wants_total=wants_total, storages=storages)
            if self._lacks_size(index, wants_total=wants_total):
                _require_first(urls, storages)
            index = self._with_tables_found(index, TableStore(cache, storages=storages))
            if wants_classes:
                index = replace(index, class_files=remote_class_files(urls, storages))
        return index

    def _with_tables_found(self, index: ShardIndex, tables: TableStore) -> ShardIndex:
        """The index, for which the table of the first remote shard stands for those of all."""
        if self.reader == "stream" or (self.reader == "auto" and self.has_stages):
            return index
        remote = _one_of_each_scheme(index.urls)
        if not remote or not all(map(has_ranges, remote)):
            return index
        url = remote[0]
        if index.counts is None:
            if self.reader == "indexed":
                self._require_counts(index)
            return index
        has_tables, remedy = self._has_table(url, tables), ""
        if has_tables:
            taken = "the indexed reader, by the member tables beside"
        elif self.reader == "auto":
            taken = "the stream reader, because there are no member tables beside"
            remedy = f"; {index_command(self.patterns)} makes them"
        else:
            raise ConfigError(f"{self.split}: {absence(url, self.patterns)}")
        _log.info(
            "%s: reader=%r takes %s %s%s", self.split, self.reader, taken, redact(url), remedy
        )
        return replace(index, has_tables=has_tables)

    def _has_table(self, url: str, tables: TableStore) -> bool:
        """Whether a table lies beside this shard; no, if its server only says that it cannot.

        What is kept of a run before decides nothing, or two machines would choose two readers.
        """
        try:
            return tables.is_beside(url, or_kept=self.reader == "indexed")
        except StorageError as error:
            if self.reader == "indexed":
                raise
            what = "%s: whether there are member tables is unknown: %s"
            _log.warning(what, self.split, error)
            return False

    def _lacks_size(self, index: ShardIndex, *, wants_total: bool) -> bool:
        """Whether the split needs numbers of samples that are not known."""
        if index.counts is not None:
            return False
        is_exact = self.reader == "indexed" or self.sampling != "resampled"
        return is_exact or (wants_total and index.total is None)

    def _require_ranges(self, remote: Sequence[str], index: ShardIndex) -> None:
        """Refuse shards of which samples cannot be read by themselves."""
        streamed = [url for url in remote if not has_ranges(url)]
        if streamed:
            raise ConfigError(
                f"reader='indexed' of {self.split!r} reads ranges of shards, and "
                f"{redact(streamed[0])} can only be streamed; copy it, or take reader='stream'"
            )
        self._require_counts(index)

    def _require_counts(self, index: ShardIndex) -> None:
        """Refuse shards that no file counts."""
        if index.counts is None:
            raise ConfigError(
                f"reader='indexed' of {self.split!r} needs the number of samples of each shard, "
                "and its remote shards have no counts; put a wids JSON or sizes.json beside them: "
                f"{index_command(self.patterns)} makes it and their member tables"
            )


def _require_first(urls: Sequence[str], storages: Storages) -> None:
    """Check that a remote shard is there: perhaps it has no counts because its URL is wrong.

    Raises:
        ShardError: Its store does not give it.
    """
    url = next((url for url in urls if not is_local(url) and has_ranges(url)), None)
    if url is not None:
        storages.of(url).stat(url)


def _one_of_each_scheme(urls: Sequence[str]) -> list[str]:
    """The first remote shard of each scheme; there may be 10^6 shards."""
    firsts: dict[str, str] = {}
    for url in urls:
        firsts.setdefault(scheme_of(url), url)
    return [url for url in firsts.values() if not is_local(url)]


def require_forkable(urls: Sequence[str]) -> None:
    """Refuse to fork workers that read by a client which does not survive a fork.

    Raises:
        ConfigError: Some shards are read by such a client.
    """
    schemes = list(map(scheme_of, _one_of_each_scheme(urls)))
    known = (scheme for scheme in schemes if scheme in SCHEMES)
    scheme = next((scheme for scheme in known if not SCHEMES[scheme].survives_fork), None)
    if scheme is not None:
        raise ConfigError(
            f"multiprocessing_context='fork' does not go with {scheme}:// shards, whose client "
            "does not survive a fork; take 'forkserver' or 'spawn'"
        )


def choose_reader(
    choices: Sequence[ReaderChoice], indexes: Sequence[ShardIndex], *, is_mixture: bool
) -> Literal["stream", "indexed"]:
    """The one reader of these components, or of the one data set that is no mixture.

    `auto` takes `indexed` if each of them is local or has member tables, and none has stages. What
    is drawn with replacement is indexed as well.

    Raises:
        ConfigError: One cannot be read by the reader that is asked for, or serves each sample once
            and the mixture has to be streamed.
    """
    of_each = zip(choices, indexes, strict=True)
    streamed = [choice for choice, index in of_each if choice.of(index) == "stream"]
    if not streamed:
        return "indexed"
    for choice in choices if is_mixture else ():
        if choice.sampling != "resampled":
            raise ConfigError(
                f"{choice.split} has sampling={choice.sampling!r}, and a mixture that is streamed "
                f"cannot serve each sample once a pass; it is streamed because "
                f"{_why(streamed[0])}: take sampling='resampled' for it, or make all "
                "components local or put member tables beside them, without stages"
            )
    return "stream"


def _why(streamed: ReaderChoice) -> str:
    if streamed.reader == "stream":
        return "of reader='stream'"
    what = "has stages" if streamed.has_stages else "is remote, without member tables beside it"
    return f"{streamed.split} {what}"
