"""The writer of the indexes of a data set: wids JSON, member tables, `sizes.json`, DALI's index.

The files of local shards lie beside them. Those of remote shards are put beside them as well, or
into a folder of this machine that has the same folders below it. All files are functions of the
shards alone: a run that is repeated writes the same bytes. A file that lists other shards is
replaced only by force.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import file_digest, md5
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.survey import (
    ShardSurvey,
    Survey,
    describe_table,
    find_odd_headers,
    survey,
)
from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    IndexMismatchError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.shards.beside import (
    MAX_INDEX_BYTES,
    SIZES,
    WIDS,
    foreign_field,
    is_count,
    json_object,
    shard_entries,
    wids_entry,
)
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.files import open_regular, read_regular, replace_file
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import ENCODING, MemberTable, scan_members, table_of_samples
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
from lightning_shards.shards.storage.protocol import ShardStat, Storage, shard_stat
from lightning_shards.shards.storage.remote import RemoteStorage
from lightning_shards.shards.storage.schemes import has_ranges
from lightning_shards.shards.table_bytes import published, published_url
from lightning_shards.shards.tables import TableStore, write_table
from lightning_shards.shards.tar.plain_runs import run_of
from lightning_shards.shards.tar.tar_bytes import TarStream, open_tar
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

_NOT_IN_NAMES: Final = re.compile(r"[/\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class FolderPlace:
    """A folder of this machine."""

    folder: Path

    def where(self, name: str) -> str:
        """What messages call a file."""
        return str(self.folder / name)

    def get(self, name: str) -> bytes | None:
        """The contents of a file; None if it is not there."""
        path = self.folder / name
        return read_regular(path, MAX_INDEX_BYTES) if os.path.exists(path) else None  # noqa: PTH110 never raises

    def put(self, name: str, data: bytes) -> str:
        """Write a file, and say where; errors as of `replace_file`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / name, data)
        return self.where(name)


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The folder of a remote shard, whose query goes with the files; it is pickled as settings."""

    folder: str
    shard: str = field(compare=False)
    transport: RemoteTransport = field(compare=False)

    def where(self, name: str) -> str:
        """What messages call a file."""
        return redact(self._url(name))

    def get(self, name: str) -> bytes | None:
        """The contents of a file; None if it is not there or not given."""
        try:
            return bytes(self.transport.read(self._url(name), 0, MAX_INDEX_BYTES).data)
        except (ShardNotFoundError, FileAccessError):  # stores refuse what may not be listed
            return None

    def put(self, name: str, data: bytes) -> str:
        """Write a file, and say where.

        Raises:
            ShardError: It cannot be written.
        """
        try:
            self.transport.write(self._url(name), data)
        except (ConfigError, FileAccessError, StorageError, ShardNotFoundError) as error:
            raise type(error)(
                f"{error}; if this store takes no files from you, give --output DIR in place of "
                "--upload, and put what is in it beside the shards: no shard is read again"
            ) from None
        return self.where(name)

    def _url(self, name: str) -> str:
        return url_beside(self.shard, escaped(name, self.shard))


IndexPlace = FolderPlace | StorePlace


class PlacedShard(NamedTuple):
    """The file name of a shard, as its index lists it, and where the files of its index go."""

    name: str
    place: IndexPlace
    is_beside: bool = False

    def may_lose(self, name: str) -> bool:
        """Whether another shard of this name may exist; for remote shards this is not checked."""
        if self.is_beside and isinstance(self.place, FolderPlace):
            return os.path.isfile(self.place.folder / name)  # noqa: PTH113 never raises
        return True


def place_local(
    urls: Sequence[str], output: Path | None, *, is_uploaded: bool
) -> dict[str, PlacedShard]:
    """The places of local shards, those of one folder in its first spelling.

    Links are followed, so that `a/0.tar` and `b/../a/1.tar` are in `a`.

    Raises:
        ConfigError: An option of remote shards was given.
    """
    if output is not None or is_uploaded:
        option = "--upload" if output is None else f"--output {output}"
        raise ConfigError(
            f"{option} is for remote shards; the indexes of local ones lie beside them: leave it "
            "out"
        )
    spellings: dict[str, str] = {}
    placed: dict[str, PlacedShard] = {}
    for url in urls:
        folder, name = split_url(url)
        folder = spellings.setdefault(os.path.realpath(folder), folder)
        path = plain_path(os.path.join(folder, name))  # noqa: PTH118 it keeps the ./
        placed[path] = PlacedShard(name, FolderPlace(Path(folder)), is_beside=True)
    return placed


def place_remote(
    urls: Sequence[str], output: Path | None, transport: RemoteTransport, *, is_uploaded: bool
) -> dict[str, PlacedShard]:
    """The places of remote shards: beside them, or in a folder of this machine.

    Raises:
        ConfigError: There are none; the message has the remedy.
    """
    if any(map(is_local, urls)):
        raise ConfigError("some of the shards are remote; index them and the local ones separately")
    if (output is None) is not is_uploaded:
        raise ConfigError(
            f"{redact(urls[0])} is remote: name a folder for the indexes by --output DIR, to be "
            "uploaded beside the shards, or let them be put there by --upload"
        )
    folders = {split_url(url)[0] for url in urls}
    if output is not None and len(folders) > 1:
        raise ConfigError(
            f"the shards are in {len(folders)} folders; index those of each by themselves, with an "
            "--output of their own"
        )
    placed: dict[str, PlacedShard] = {}
    for url in urls:
        folder, name = split_url(url)
        place = StorePlace(folder, url, transport) if output is None else FolderPlace(output)
        placed[url] = PlacedShard(_named(url, name), place)
        if output is None and scheme_of(url) == "hf":
            raise ConfigError(
                "hf: is not written by file; give --output DIR in place of --upload, and put what "
                "is in it beside the shards by the tools of that store"
            )
    return placed


def _named(url: str, escaped_name: str) -> str:
    """The name of the file of a remote shard."""
    name = unescaped(escaped_name, url)
    if not has_ranges(url) or name in ("", ".", "..") or _NOT_IN_NAMES.search(name):
        raise ConfigError(
            f"an index lists shards by file name in their folder, and {redact(url)} has none; name "
            "it by a URL like https://HOST/FOLDER/NAME.tar"
        )
    return name


FORMATS: Final = ("wids", "members", "sizes", "dali")


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What is written, and where.

    Attributes:
        cache: Where member tables are kept.
        settings: How remote shards are reached.
        formats: Some of `FORMATS`.
        wids_name: File name of the wids JSON.
        checksums: Whether every byte is read; None: of remote shards, and for member tables.
        output: A folder for the files of remote shards.
        is_uploaded: Whether they are put beside the shards.
        allows_problems: Whether files are written whatever is found.
        is_forced: Whether files that list other shards, or that others wrote, are replaced.
        processes: Number of processes.
    """

    cache: CacheFolder
    settings: TransportSettings
    formats: tuple[str, ...] = ("wids",)
    wids_name: str = WIDS
    checksums: bool | None = None
    output: Path | None = None
    is_uploaded: bool = False
    allows_problems: bool = False
    is_forced: bool = False
    processes: int = 1

    def __post_init__(self) -> None:
        """Refuse names that lead out of the folder of the shards, and unknown formats.

        Raises:
            ConfigError: The message names the value.
        """
        if Path(self.wids_name).name != self.wids_name or not self.wids_name.endswith(".json"):
            raise ConfigError(f"the wids JSON is named NAME.json, got {self.wids_name!r}")
        unknown = sorted(set(self.formats) - set(FORMATS))
        if unknown:
            raise ConfigError(f"formats are {', '.join(FORMATS)}, not {unknown[0]!r}")


class Indexed(NamedTuple):
    """The survey of a data set, and paths or redacted URLs of the files that were written."""

    survey: Survey
    written: list[str]


def index_shards(urls: Sequence[str], options: IndexOptions) -> Indexed:
    """Survey shards, and write the files of their index.

    Member tables are put in their place as soon as their shard is read, the wids JSON last of all.

    Raises:
        ConfigError: These files cannot be written for these shards.
        ShardError: A file cannot be written, or the store does not answer.
    """
    transport = RemoteTransport(options.settings)
    storage = RemoteStorage(transport, options.settings.connections)
    output, is_uploaded = options.output, options.is_uploaded
    try:
        if all(map(is_local, urls)):
            placed = place_local(urls, output, is_uploaded=is_uploaded)
        else:
            placed = place_remote(urls, output, transport, is_uploaded=is_uploaded)
        return _index(placed, options, storage)
    finally:
        storage.close_all()


def _index(
    placed: Mapping[str, PlacedShard], options: IndexOptions, storage: RemoteStorage
) -> Indexed:
    urls = list(placed)
    if len(set(placed.values())) < len(placed):
        raise ConfigError("several of the URLs name one shard; leave all but one of them out")
    if "dali" in options.formats:
        _require_dali_paths(urls)
    _require_own(placed, options)
    look = _Look(options, placed, storage)
    try:
        seen = survey(urls, look, processes=options.processes)
    except StorageError as error:
        raise StorageError(
            f"{error}; what was read is kept: give the same command again to go on"
        ) from None
    written = [
        shard.place.where(published_url(shard.name))
        for shard, looked in zip(placed.values(), seen.shards, strict=True)
        if "members" in options.formats and looked.is_readable
    ]
    are_readable = all(shard.is_readable for shard in seen.shards)
    if seen.failures and not (options.allows_problems and are_readable):
        return Indexed(seen, [])
    if "dali" in options.formats:
        written += map_parallel(_write_dali, urls, options.processes)
    _require_own(placed, options)  # another run may have put its own there meanwhile
    return Indexed(seen, written + _write_listings(placed, seen, options))


def _by_place(placed: Mapping[str, PlacedShard]) -> dict[IndexPlace, list[PlacedShard]]:
    places: dict[IndexPlace, list[PlacedShard]] = {}
    for shard in placed.values():
        places.setdefault(shard.place, []).append(shard)
    return places


def _write_listings(
    placed: Mapping[str, PlacedShard], seen: Survey, options: IndexOptions
) -> list[str]:
    """Write `sizes.json` and the wids JSON of each folder."""
    looked = dict(zip(placed.values(), seen.shards, strict=True))
    written: list[str] = []
    for place, shards in _by_place(placed).items():
        if "sizes" in options.formats:
            before = json_object(_parsed(place.get(SIZES)))
            counts = {name: count for name, count in before.items() if is_count(count)}
            counts |= {shard.name: looked[shard].samples for shard in shards}
            written.append(place.put(SIZES, _dumped(dict(sorted(counts.items())))))
        if "wids" in options.formats:
            entries = [_entry(shard, looked[shard], options) for shard in shards]
            content = {"__kind__": "wids-shard-index-v1", "wids_version": 1}
            content |= {"name": Path(options.wids_name).stem, "shardlist": entries}
            written.append(place.put(options.wids_name, _dumped(content)))
    return written


def _dumped(content: object) -> bytes:
    return f"{json.dumps(content, indent=1)}\n".encode()


def _entry(shard: PlacedShard, seen: ShardSurvey, options: IndexOptions) -> dict[str, str | int]:
    table = published_url(shard.name) if "members" in options.formats else None
    return wids_entry(shard.name, seen.samples, seen.size_bytes, seen.md5, table)


def _parsed(data: bytes | None) -> object:
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return None


def _require_own(placed: Mapping[str, PlacedShard], options: IndexOptions) -> None:
    """Check that no file would lose what it says of other shards, or is another program's.

    Raises:
        ConfigError: One would; the message names it.
    """
    places = {} if options.is_forced else _by_place(placed)
    for place, shards in places.items():
        sizes = place.get(SIZES) if "sizes" in options.formats else None
        if sizes is not None and not json_object(_parsed(sizes)):
            raise _not_replaced(place.where(SIZES), "it is no JSON object")
        data = place.get(options.wids_name) if "wids" in options.formats else None
        if data is not None:
            content, named = _parsed(data), {shard.name for shard in shards}
            problem = foreign_field(content)
            listed = {_name(entry) for entry in shard_entries(content) or ()} - named
            others = sorted(filter(shards[0].may_lose, listed))
            if others:
                problem = f"it also lists {others[0]!r}, not named now"
            if problem:
                raise _not_replaced(place.where(options.wids_name), problem)


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("url")).rpartition("/")[2]


def _not_replaced(where: str, problem: str) -> ConfigError:
    return ConfigError(
        f"{where} is not overwritten: {problem}; index all shards of its folder together, name "
        "another file (--wids train.json), move it away, or give --force"
    )


def file_md5(path: str) -> str:
    """MD5 of a file, as in the wids JSON; it protects against accidents only."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file_digest(file, partial(md5, usedforsecurity=False)).hexdigest()


@dataclass(frozen=True, slots=True)
class _Look:
    """How a shard is looked at; it travels to the processes that do it."""

    options: IndexOptions
    placed: Mapping[str, PlacedShard]
    storage: RemoteStorage

    def __call__(self, url: str) -> ShardSurvey:
        options, shard = self.options, self.placed[url]
        with_tables = "members" in options.formats
        if is_local(url):
            reads_all = with_tables if options.checksums is None else options.checksums
            table = TableStore(options.cache, with_crc32=reads_all).table_of(url)
            seen = describe_table(url, table)
            seen.md5 = file_md5(url) if reads_all else None
            seen.findings += find_odd_headers(url, table)
        else:
            with_crc32 = options.checksums is not False
            table = scan_remote(url, self.storage, options.cache, with_crc32=with_crc32)
            seen = describe_table(url, table)
        if with_tables:
            shard.place.put(published_url(shard.name), published(table))
        return seen


_AT_ONCE: Final = 1 << 20
"""Bytes of a member that are held at once to take its crc32."""


def scan_remote(url: str, storage: Storage, cache: CacheFolder, *, with_crc32: bool) -> MemberTable:
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
    scan = _scan_stream if with_crc32 else _scan_headers
    table = scan(url, storage, stat)
    if shard_stat(url, storage) != stat:
        raise IndexMismatchError(
            f"{redact(url)} changed while it was read: a program still writes it; give the command "
            "again when it is whole"
        )
    write_table(cache.sidecar_of(url), table, cache)
    return table


def _scan_headers(url: str, storage: Storage, _stat: ShardStat) -> MemberTable:
    return scan_members(url, storage=storage)


def _scan_stream(url: str, storage: Storage, stat: ShardStat) -> MemberTable:
    crc32s: dict[int, int] = {}  # by the offset of a member

    def members(tar: TarStream) -> Iterator[Member]:
        for member in walk_members(tar, url):
            checksum, stop = 0, member.offset + member.size
            for begin in range(member.offset, stop, _AT_ONCE):
                checksum = crc32(tar.data(begin, min(_AT_ONCE, stop - begin)), checksum)
            crc32s[member.offset] = checksum
            yield member

    with storage.open_stream(url) as stream:
        run = run_of(group_members(members(TarStream(stream, url)), url), stat.size)
    of_members = [crc32s[offset] for offset in run.offsets.tolist()]
    return table_of_samples(run, stat, np.array(of_members, np.uint32))


_SPACE: Final = re.compile(r"\s")


def _dali_path(shard: str) -> Path:
    """The path of the index that `wds2idx` writes: `data/a.idx` for `data/a.b.tar`."""
    path = Path(shard)
    return path.with_name(path.name.partition(".")[0] + ".idx")


def _require_dali_paths(urls: Sequence[str]) -> None:
    if not all(map(is_local, urls)):
        raise ConfigError(
            "the format dali needs the shards at hand; index a local copy of them, or leave it out"
        )
    shards: dict[Path, str] = {}
    for url in urls:
        other = shards.setdefault(_dali_path(url), url)
        if other != url:
            raise ConfigError(
                f"DALI's index of {url} is {_dali_path(url).name!r}, by its name up to the first "
                f"dot, and so is that of {other}; rename the shards, or leave out the format dali"
            )


def _write_dali(url: str) -> str:
    place = FolderPlace(Path(url).parent)
    return place.put(_dali_path(url).name, dali_index(url).encode(*ENCODING))


def dali_index(url: str) -> str:
    """The contents of DALI's index of a local shard, as `wds2idx` v1.2 writes it.

    Offsets are those of the data::

        v1.2 2
        cls 512 1 a.cls jpg 1536 602 a.jpg
        cls 4096 1 b.cls jpg 5120 602 b.jpg

    Raises:
        ConfigError: The shard holds no sample, or a name with a space, which the format lacks.
    """
    lines: list[str] = []
    with open_tar(url) as data:
        for _, fields in group_members(walk_members(data, url), url):
            entries: list[str] = []
            for suffix, member in fields.items():
                if _SPACE.search(member.name):
                    raise ConfigError(
                        f"DALI's index cannot hold the name {member.name!r} of {url}: it has a "
                        "space; pack the shard again with other names"
                    )
                extension = member.name[len(member.name) - len(suffix) :]
                entries.append(f"{extension} {member.offset} {member.size} {member.name}")
            lines.append(" ".join(entries))
    if not lines:
        raise ConfigError(f"DALI's index needs a sample at least, and {url} has none; leave it out")
    return "\n".join([f"v1.2 {len(lines)}", *lines, ""])


def shard_bytes(index: ShardIndex) -> int | None:
    """The size of all shards in bytes; None if one is remote."""
    if not all(map(is_local, index.urls)):
        return None
    return sum(Path(url).stat().st_size for url in index.urls)
