"""The index files that are wanted: their formats, names and folders.

The files of remote shards go to a folder of this machine, from where they are uploaded beside them:
it has the same folders as the shards have below the folder that holds them all. Where URLs escape
names, as on web servers, files and what they list have the names that the server's own files have.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from lightning_shards.dataprep.indexes.idx_files import require_own_dali_paths
from lightning_shards.errors import ConfigError
from lightning_shards.shards.beside import WIDS
from lightning_shards.shards.files import make_folder
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import has_ranges
from lightning_shards.shards.table_bytes import published_url
from lightning_shards.shards.urls import (
    is_local,
    plain_path,
    redact,
    scheme_of,
    split_url,
    unescaped,
)

Format = Literal["wids", "members", "sizes", "dali", "energon", "card"]
FORMATS: Final = get_args(Format)


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """The index files to write.

    Attributes:
        cache: Where member tables are kept.
        formats: Their formats.
        wids_name: File name of the wids JSON, in each folder that holds shards.
        processes: Number of processes that write the files of single shards.
        output: The folder to write for remote shards; None for local ones.
        is_uploaded: Whether the files of remote shards are put beside them.
    """

    cache: CacheFolder
    formats: tuple[Format, ...] = ("wids",)
    wids_name: str = WIDS
    processes: int = 1
    output: Path | None = None
    is_uploaded: bool = False

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

    def require_fit(self, urls: Sequence[str]) -> None:
        """Check, before shards are fetched, that these files can be written for them.

        Raises:
            ConfigError: They cannot; the message has the remedy.
        """
        remote = [url for url in urls if not is_local(url)]
        if not remote:
            if "dali" in self.formats:
                require_own_dali_paths(urls)
            if self.output is not None or self.is_uploaded:
                option = "--upload" if self.output is None else f"--output {self.output}"
                raise ConfigError(
                    f"{option} is for remote shards; the indexes of local ones lie beside them: "
                    "leave it out"
                )
            return
        if len(remote) < len(urls):
            raise ConfigError(
                f"{len(remote)} of {len(urls)} shards are remote; index them and the local ones "
                "each by themselves"
            )
        if (self.output is None) is not self.is_uploaded:
            raise ConfigError(
                f"{redact(remote[0])} is remote: name a folder for the indexes by --output DIR, to "
                "be uploaded beside the shards, or let them be put there by --upload"
            )
        cannot = next((url for url in remote if not _is_written(url)), None)
        if self.is_uploaded and cannot is not None:
            raise ConfigError(
                f"{scheme_of(cannot)}: is not written by file; give --output DIR in place of "
                "--upload, and put what is in it beside the shards by the tools of that store"
            )
        at_hand = [name for name in ("dali", "energon") if name in self.formats]
        if at_hand:
            raise ConfigError(
                f"the format {at_hand[0]} has a file for each shard and needs the shards at hand; "
                "index a local copy of them, or leave it out"
            )
        self.paths(remote)

    def paths(self, urls: Sequence[str]) -> list[Path]:
        """The paths in the output folder that stand for remote shards; errors as `require_fit`."""
        return _paths_of([redact(url) for url in urls], self.output or Path())

    def table_paths(self, urls: Sequence[str]) -> list[Path]:
        """Where the member table of each shard is published, in folders that exist; else empty."""
        if "members" not in self.formats:
            return []
        paths = list(map(Path, urls))
        if self.output is not None:
            paths = made_paths([redact(url) for url in urls], self.output)
        return [Path(published_url(str(path))) for path in paths]


def in_one_spelling(urls: Sequence[str]) -> list[str]:
    """The shards, each once, those of one folder by its first spelling: its files are written once.

    Links are followed, so that `a/0.tar` and `b/../a/1.tar` are in `a`.
    """
    spellings: dict[str, str] = {}
    spelt: list[str] = []
    for url in urls:
        if is_local(url):
            folder, name = split_url(url)
            folder = spellings.setdefault(os.path.realpath(folder), folder)
            spelt.append(plain_path(os.path.join(folder, name)))  # noqa: PTH118 it keeps the ./
        else:
            spelt.append(url)
    return list(dict.fromkeys(spelt))


def made_paths(urls: Sequence[str], output: Path) -> list[Path]:
    """What `_paths_of` gives, and raises; their folders are made."""
    paths = _paths_of(urls, output)
    for below in dict.fromkeys(path.parent.relative_to(output) for path in paths):
        make_folder(output, str(below))
    return paths


def _paths_of(urls: Sequence[str], output: Path) -> list[Path]:
    """The paths in the output folder that stand for these shards, by names without escapes.

    Raises:
        ConfigError: They have no such paths.
    """
    parts = list(map(_parts_of, urls))
    for url, (folder, name) in zip(urls, parts, strict=True):
        is_strange = any(map(_NOT_IN_NAMES.search, (*folder[_LEAST_PARTS:], name)))
        if folder == ["pipe:"] or ".." in folder or name in ("", ".", "..") or is_strange:
            raise ConfigError(
                f"an index lists shards by file name in their folder, and {url} has none; name it "
                "by a URL like https://HOST/FOLDER/NAME.tar"
            )
    shared = os.path.commonprefix([folder for folder, _ in parts])  # noqa: RUF071 whole names
    if len(shared) < _LEAST_PARTS:
        raise ConfigError(
            f"{urls[0]} and other shards are on different hosts; index those of one at a time"
        )
    paths = [Path(output, *folder[len(shared) :], name) for folder, name in parts]
    if len(set(paths)) < len(paths):
        twice = Counter(paths).most_common(1)[0][0]
        raise ConfigError(
            f"several of the URLs name {twice.name!r} in one folder, and an index tells shards by "
            "their names; index one of them"
        )
    return paths


def _parts_of(url: str) -> tuple[list[str], str]:
    """The parts of a shard's folder, and its name."""
    folder, name = split_url(url)
    parts = folder.split("/")
    below = [unescaped(part, url) for part in parts[_LEAST_PARTS:]]
    return [*parts[:_LEAST_PARTS], *below], unescaped(name, url)


_NOT_IN_NAMES = re.compile(r"[/\x00-\x1f\x7f]")

_LEAST_PARTS = 3
"""All shards of one index have these three parts of their URL in common: `https:`, "", host."""


def _is_written(url: str) -> bool:
    """Whether the store of a remote shard takes single files."""
    return has_ranges(url) and scheme_of(url) != "hf"
