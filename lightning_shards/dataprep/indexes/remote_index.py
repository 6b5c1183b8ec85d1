"""The index of remote shards: they are read where they are, and its files may be put beside them.

An upload puts each member table there as soon as its shard is read, and the wids JSON last of all.
What is there already is treated like what lies beside local shards: a wids JSON that lists other
shards is refused before any shard is read, the counts of other shards in `sizes.json` stay, and a
file that differs is replaced, which is said. It is looked at again after the scan, as another run
may have put its own entries there meanwhile.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from lightning_shards.dataprep.indexes.cards import CARD
from lightning_shards.dataprep.indexes.earlier_files import require_own_index
from lightning_shards.dataprep.indexes.indexing import write_index
from lightning_shards.dataprep.indexes.wanted_files import IndexFiles
from lightning_shards.dataprep.inspection.remote_survey import RemoteScan, survey_remote
from lightning_shards.dataprep.inspection.survey import Survey
from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.shards.beside import MAX_INDEX_BYTES, SIZES
from lightning_shards.shards.remote.transport import (
    RemoteTransport,
    Transport,
    TransportSettings,
)
from lightning_shards.shards.storage.remote import RemoteStorage
from lightning_shards.shards.table_bytes import published_url
from lightning_shards.shards.urls import escaped, redact, url_beside

_QUERY = re.compile(r"[?#].*", re.DOTALL)


class Indexed(NamedTuple):
    """The survey of a data set, and the files of its index.

    Attributes:
        survey: Of all shards.
        written: Paths or redacted URLs of the files, empty if they were not to be written.
        replaced: Those of them in whose place another file was.
    """

    survey: Survey
    written: list[str]
    replaced: list[str]


@dataclass(frozen=True, slots=True)
class ObjectsBeside:
    """Small objects beside remote shards; it is pickled as the settings of its transport."""

    transport: Transport

    def get(self, url: str, most_bytes: int) -> bytes | None:
        """The first bytes of an object; None if it is not there or not given.

        Raises:
            StorageError: The store does not answer.
        """
        try:
            return bytes(self.transport.read(url, 0, most_bytes).data)
        except (ShardNotFoundError, FileAccessError):  # stores refuse what may not be listed
            return None

    def put(self, url: str, data: bytes) -> bool:
        """Write an object unless it is there already; whether it has replaced another one.

        Raises:
            ShardError: It cannot be written.
        """
        there = self.get(url, len(data) + 1)
        if there == data:
            return False
        try:
            self.transport.write(url, data)
        except (ConfigError, FileAccessError, StorageError, ShardNotFoundError) as error:
            raise type(error)(
                f"{error}; if this store takes no files from you, give --output DIR in place of "
                "--upload, and put what is in it beside the shards: no shard is read again"
            ) from None
        return there is not None


def index_remote(
    urls: Sequence[str],
    files: IndexFiles,
    settings: TransportSettings,
    *,
    with_checksums: bool,
    may_write: Callable[[Survey], bool],
) -> Indexed:
    """Survey remote shards, and write the files of their index.

    Args:
        urls: The shards, of which ranges can be read.
        files: What is written.
        settings: How their store is reached.
        with_checksums: Whether every byte is read.
        may_write: Whether files are written, by what was found.

    Raises:
        ShardError: A file would lose entries of other shards or cannot be written, or the store
            does not answer.
    """
    with closing(RemoteTransport(settings)) as transport:
        objects = ObjectsBeside(transport)
        storage = RemoteStorage(transport, settings.connections)
        scan = RemoteScan(storage, files.cache, with_checksums, objects.put)
        if files.is_uploaded:
            with TemporaryDirectory(prefix="lightning-shards-") as folder:
                staged = replace(files, output=Path(folder))
                return _uploaded(urls, staged, scan, objects, may_write)
        require_own_index(urls, files)
        tables = files.table_paths(urls)
        found = survey_remote(urls, scan, places=tables, processes=files.processes)
        if not may_write(found):
            return Indexed(found, [], [])
        written = [*filter(Path.exists, tables), *write_index(found, files)]
        return Indexed(found, list(map(str, written)), [])


def _uploaded(
    urls: Sequence[str],
    files: IndexFiles,
    scan: RemoteScan,
    objects: ObjectsBeside,
    may_write: Callable[[Survey], bool],
) -> Indexed:
    """The index that is put beside the shards, by way of the output folder.

    The scan may take hours, so what is beside the shards is fetched and checked again after it:
    what another run has put there meanwhile is kept or refused, as before the scan. Stores have no
    locks, so what is put there between that look and the upload, about a second, is still lost.
    """
    _fetch_old(urls, files, objects)
    require_own_index(urls, files)
    uploaded = list(map(published_url, urls)) if "members" in files.formats else []
    found = survey_remote(urls, scan, places=uploaded, processes=files.processes)
    if not may_write(found):
        return Indexed(found, [], [])
    root, replaced = _root_of(urls, files), _replaced_tables(urls, found)
    _fetch_old(urls, files, objects)
    for path in write_index(found, files):  # which checks what was fetched
        uploaded.append(_url_of(path, files, root))
        if objects.put(uploaded[-1], path.read_bytes()):
            replaced.append(uploaded[-1])
    return Indexed(found, list(map(redact, uploaded)), list(map(redact, replaced)))


def _replaced_tables(urls: Sequence[str], found: Survey) -> list[str]:
    shards = zip(urls, found.shards, strict=True)
    return [published_url(url) for url, shard in shards if shard.has_replaced_table]


def _fetch_old(urls: Sequence[str], files: IndexFiles, objects: ObjectsBeside) -> None:
    """Put what is beside the shards now, and nothing else, where the files are written."""
    assert files.output is not None  # a temporary folder
    folders = {path.parent for path in files.paths(urls)}
    paths = [folder / name for folder in folders for name in (files.wids_name, SIZES)]
    if "card" in files.formats:
        paths.append(files.output / CARD)
    root = _root_of(urls, files)
    for path in paths:
        data = objects.get(_url_of(path, files, root), MAX_INDEX_BYTES)
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _root_of(urls: Sequence[str], files: IndexFiles) -> str:
    """URL of the folder that the output folder stands for, with the query of the first shard."""
    assert files.output is not None
    depth = len(files.paths(urls)[0].relative_to(files.output).parts)
    address = _QUERY.sub("", urls[0])
    return f"{address.rsplit('/', depth)[0]}/{urls[0][len(address) :]}"


def _url_of(path: Path, files: IndexFiles, root: str) -> str:
    assert files.output is not None
    return url_beside(root, escaped(path.relative_to(files.output).as_posix(), root))
