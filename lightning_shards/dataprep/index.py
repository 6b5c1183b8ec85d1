"""The writer of the indexes of a data set: wids JSON and member tables.

They are put into the folder of the shards, or into another one of this machine. All files are
functions of the shards alone: a run that is repeated writes the same bytes. A file that lists other
shards is never replaced.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import file_digest, md5
from itertools import zip_longest
from pathlib import Path
from typing import Final

import numpy as np

from lightning_shards.dataprep.survey import (
    ShardSurvey,
    Survey,
    describe_table,
    reported_name,
    survey,
)
from lightning_shards.errors import ConfigError, IndexMismatchError
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.remote.storage import remote_storages
from lightning_shards.remote.transport import RemoteTransport
from lightning_shards.shards.counts import WIDS, wids_entries, wids_entry, wids_json
from lightning_shards.shards.files import (
    CacheFolder,
    crc32,
    make_folder,
    open_regular,
    replace_file,
)
from lightning_shards.shards.members import ENCODING, MemberTable, scan_members, table_of_samples
from lightning_shards.shards.storage.protocol import ShardStat, Storage, shard_stat
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore, published, published_url, write_table
from lightning_shards.shards.tar.plain_runs import run_of
from lightning_shards.shards.tar.tar_streams import TarStream
from lightning_shards.shards.tar.walk import Member, group_members, walk_members
from lightning_shards.shards.urls import (
    escaped,
    is_local,
    plain_path,
    redact,
    scheme_of,
    split_url,
    unescaped,
    url_beside,
)

FORMATS: Final = ("wids", "members")


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What is written, and where.

    Attributes:
        settings: How remote shards are reached, and where member tables are kept.
        formats: Some of `FORMATS`.
        checksums: Whether every byte is read; None: of remote shards, and for member tables.
        output: A folder for the files, in place of that of the shards.
        is_uploaded: Whether the folder of remote shards may be written to.
        processes: Number of processes.
    """

    settings: TransportSettings
    formats: Sequence[str]
    checksums: bool | None
    output: Path | None
    is_uploaded: bool
    processes: int


@dataclass(frozen=True, slots=True)
class _Place:
    """The folder of the index, which is that of `file`; its query goes with all files."""

    file: str
    transport: RemoteTransport
    storages: Storages

    def url(self, name: str) -> str:
        return url_beside(self.file, escaped(name, self.file))

    def put(self, name: str, data: bytes | str) -> None:
        url, contents = self.url(name), data.encode(*ENCODING) if isinstance(data, str) else data
        if is_local(url):
            replace_file(make_folder(Path(url).parent) / name, contents)
        else:
            self.transport.write(url, contents)


def index_shards(urls: Sequence[str], options: IndexOptions) -> tuple[Survey, list[str]]:
    """Survey the shards of one folder, and write the files of their index.

    A member table is written as soon as its shard is read, the wids JSON last, if all shards could
    be read.

    Returns:
        The survey, and paths or redacted URLs of the files that were written.

    Raises:
        ConfigError: These files cannot be written for these shards.
        ShardError: A file cannot be written, or the store does not answer.
    """
    shards = _by_name(urls)
    with (
        closing(Storages(remote_storages(options.settings))) as storages,
        closing(RemoteTransport(options.settings)) as transport,
    ):
        place = _Place(_file_in_place(urls[0], options), transport, storages)
        if "wids" in options.formats:
            _require_own(place, set(shards))
        look = partial(_look, options=options, place=place)
        seen = survey(list(shards.values()), look, processes=options.processes)
        if not all(shard.is_readable for shard in seen.shards):
            return seen, []
        tables = [published_url(name) for name in shards] if "members" in options.formats else []
        written = list(tables)
        if "wids" in options.formats:
            entries = [
                wids_entry(name, shard.samples, shard.size_bytes, shard.md5, table)
                for name, shard, table in zip_longest(shards, seen.shards, tables)
            ]
            place.put(WIDS, wids_json(entries))
            written.append(WIDS)
    return seen, [reported_name(place.url(name)) for name in written]


def _file_in_place(url: str, options: IndexOptions) -> str:
    """A file in the folder that the options name for the index of such shards."""
    if unknown := set(options.formats) - set(FORMATS):
        raise ConfigError(f"formats are {', '.join(FORMATS)}, not {unknown.pop()!r}")
    if options.output is not None:
        return plain_path(f"{options.output}/{WIDS}")
    if not is_local(url) and (not options.is_uploaded or scheme_of(url) == "hf"):
        raise ConfigError(
            f"{redact(url)} is remote: name a folder for the indexes by --output DIR, to be "
            "uploaded beside the shards, or let them be put there by --upload (not for hf:)"
        )
    return url


def _by_name(urls: Sequence[str]) -> dict[str, str]:
    """The shards of one folder by file name, as indexes list them."""
    folders = {split_url(url)[0] for url in urls}
    if is_local(urls[0]):
        folders = set(map(os.path.realpath, folders))
    if len(folders) > 1:
        raise ConfigError(
            f"the shards are in {len(folders)} folders; index those of each by themselves"
        )
    shards = {_name_of(url): url for url in urls}
    if len(shards) < len(urls):
        raise ConfigError("several of the URLs name one shard; leave all but one of them out")
    return shards


def _name_of(url: str) -> str:
    return unescaped(split_url(url)[1], url)


def _require_own(place: _Place, names: set[str]) -> None:
    """Check that a wids JSON would not lose what it says of other shards.

    Raises:
        ConfigError: It would.
    """
    listed = [str(entry.get("url")) for entry in wids_entries(place.url(WIDS), place.storages)]
    others = sorted({url.rpartition("/")[2] for url in listed} - names)
    if others:
        raise ConfigError(
            f"{reported_name(place.url(WIDS))} is not overwritten: it also lists {others[0]!r}, "
            "not named now; index all shards together, or delete that file"
        )


def _look(url: str, *, options: IndexOptions, place: _Place) -> ShardSurvey:
    """Survey one shard, and write its member table."""
    with_crc32, cache = options.checksums, CacheFolder(options.settings.cache_dir)
    if with_crc32 is None:
        with_crc32 = not is_local(url) or "members" in options.formats
    if is_local(url):
        table = TableStore(cache, with_crc32=with_crc32, takes_split=True).table_of(url)
    else:
        table = _scan_remote(url, place.storages.of(url), cache, with_crc32=with_crc32)
    seen = describe_table(url, table)
    seen.md5 = file_md5(url) if with_crc32 and is_local(url) else None
    if "members" in options.formats:
        place.put(published_url(_name_of(url)), published(table))
    return seen


def file_md5(path: str) -> str:
    """MD5 of a file, as in the wids JSON; it protects against accidents only."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file_digest(file, partial(md5, usedforsecurity=False)).hexdigest()


def _scan_remote(
    url: str, storage: Storage, cache: CacheFolder, *, with_crc32: bool
) -> MemberTable:
    """The member table of a remote shard: the one that was kept, or one that is made and kept.

    Without crc32s only the headers are read, as far as that saves requests.

    Raises:
        DamagedShardError: It is not one whole tar archive.
        IndexMismatchError: It was replaced while it was read.
        ShardError: It is not there, or its store does not give it.
    """
    stat = shard_stat(url, storage)
    kept = TableStore(cache).kept_table(url)
    if kept is not None and kept.stamp == stat and not (with_crc32 and kept.crc32 is None):
        return kept
    table = _scan_stream(url, storage, stat) if with_crc32 else scan_members(url, storage=storage)
    if shard_stat(url, storage) != stat:
        raise IndexMismatchError(
            f"{redact(url)} changed while it was read: a program still writes it; give the command "
            "again when it is whole"
        )
    write_table(cache.sidecar_of(url), table, cache)
    return table


def _scan_stream(url: str, storage: Storage, stat: ShardStat) -> MemberTable:
    crc32s: dict[int, int] = {}  # by the offset of a member

    def members(tar: TarStream) -> Iterator[Member]:
        for member in walk_members(tar, url):
            crc32s[member.offset] = crc32(tar.data(member.offset, member.size))
            yield member

    with storage.open_stream(url) as stream:
        run = run_of(group_members(members(TarStream(stream, url)), url), stat.size)
    of_members = [crc32s[offset] for offset in run.offsets.tolist()]
    return table_of_samples(run, stat, np.array(of_members, np.uint32))
