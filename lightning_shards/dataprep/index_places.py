"""Where the files of an index are put: beside the shards, or into a folder of this machine."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.shards.beside import MAX_INDEX_BYTES
from lightning_shards.shards.files import read_regular, replace_file
from lightning_shards.shards.remote.transport import RemoteTransport
from lightning_shards.shards.storage.schemes import has_ranges
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
