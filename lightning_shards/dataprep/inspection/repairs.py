"""The folder of repaired shards: what may be written there, and the report that says what was.

Nothing is written over what others put there. The report names the shards that were saved to the
folder, and only these are replaced by a later repair of the same shards. Until it is written a file
beside it names them, so that a run that was killed can be repeated. One run at a time holds the
folder, because each adds to the report that it has read.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from lightning_shards.dataprep.finished import lock_output
from lightning_shards.dataprep.inspection.findings import Finding, finding_of, reported_name
from lightning_shards.dataprep.inspection.listed_shards import known_tables
from lightning_shards.dataprep.inspection.salvage import (
    DecoderOf,
    Salvage,
    gone_samples,
    salvage,
)
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.errors import (
    ConfigError,
    DamagedShardError,
    IndexMismatchError,
    StorageError,
)
from lightning_shards.shards.beside import json_object, read_json
from lightning_shards.shards.files import make_folder, open_folder, replace_file
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.local_copies import file_name, local_copy
from lightning_shards.shards.urls import is_local

REPORT: Final = "repair.json"

_BEGUN: Final = f"{REPORT}.part"
"""Names the shards of a run that is under way or was killed, as the report does."""

_UNFINISHED = {"": "the repair was not finished; give the same command again"}


@contextmanager
def repair_place(urls: Sequence[str], folder: Path | None) -> Generator[None]:
    """Hold the folder for copies of any of these shards, if any, as long as the block lasts.

    It is made, and removed at the end if nothing was written to it.

    Raises:
        ConfigError: Another run holds it, two shards have the same name, one of them is in the
            folder, also by a link, or something is there that is no repair of this shard.
        FileAccessError: It cannot be made or opened.
    """
    if folder is None:
        yield
        return
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        with open_folder(make_folder(folder)) as file:
            lock_output(file, folder)
            _require_place(urls, folder)
            yield
    finally:
        with suppress(OSError):  # there is something in it
            for path in missing:
                path.rmdir()


def _require_place(urls: Sequence[str], folder: Path) -> None:
    """Check that copies of any of these shards can be written to this folder, which exists."""
    name, times = Counter(map(file_name, urls)).most_common(1)[0] if urls else ("", 0)
    if times > 1:
        raise ConfigError(
            f"{times} of the shards are named {name!r}, and their repaired copies would overwrite "
            "each other; verify the shards of one folder at a time"
        )
    local = [Path(url) for url in urls if is_local(url)]
    folders = {parent.resolve() for parent in {path.parent for path in local}}
    folders |= {path.resolve().parent for path in local}
    if folder.resolve() in folders:
        raise ConfigError(
            f"{folder} holds shards that are verified, and they stay as they are; name another "
            "folder for the repair"
        )
    entries = _report(folder).items()
    sources = {Path(entry["path"]).name: url for url, entry in entries if entry["path"]}
    for url in urls:
        target = folder / file_name(url)
        if os.path.lexists(target) and not _is_same(sources.get(target.name), url):
            raise ConfigError(
                f"{target} is there, and {folder / REPORT} does not name it as a repair of "
                f"{reported_name(url)}; move it away, or name another folder for the repair"
            )


def repair_shards(
    urls: Sequence[str],
    folder: Path,
    repair: Callable[..., Salvage | Finding],
    processes: int,
) -> tuple[dict[str, Salvage], list[Finding]]:
    """The repairs by redacted URL, which the report names, too, and what kept others from it.

    `repair` saves one shard, given its URL and `folder`, which `repair_place` holds. Where no shard
    could be repaired, the folder is as it was.
    """
    repairs: dict[str, Salvage] = {}
    findings: list[Finding] = []
    if not urls:
        return repairs, findings
    before = _report(folder)
    begun = {
        reported_name(url): Salvage(str(folder / file_name(url)), 0, _UNFINISHED) for url in urls
    }
    _write_report(folder / _BEGUN, before, begun)
    for url, saved in zip(
        urls, map_parallel(partial(repair, folder=folder), urls, processes), strict=True
    ):
        if isinstance(saved, Finding):
            findings.append(saved)
        else:
            repairs[reported_name(url)] = saved
    if before or repairs:
        _write_report(folder / REPORT, before, repairs)
    (folder / _BEGUN).unlink(missing_ok=True)
    return repairs, findings


def repair_shard(
    url: str,
    *,
    folder: Path,
    cache: CacheFolder,
    settings: TransportSettings | None = None,
    decoder_of: DecoderOf | None = None,
) -> Salvage | Finding:
    """Save the whole samples of one shard to a folder; see `salvage`.

    A shard that cannot be fetched again is a finding: nothing is known to be lost.
    """
    known: Sequence[MemberTable] = ()
    try:
        known = known_tables(url, cache, settings).tables
        with local_copy(url, cache, settings) as shard:
            return salvage(shard.path, folder, known, decoder_of)
    except DamagedShardError as error:  # it is empty
        return Salvage(None, 0, {"": str(error)} | gone_samples(known, ()))
    except (StorageError, IndexMismatchError) as error:
        return finding_of(error, reported_name(url))


def _report(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of the reports in a folder, by redacted URL; none if there is no report.

    Raises:
        ConfigError: A file of their names is none.
    """
    return _entries_at(folder / _BEGUN) | _entries_at(folder / REPORT)


def _entries_at(path: Path) -> dict[str, dict[str, Any]]:
    if not os.path.lexists(path):
        return {}
    content = read_json(path)
    entries = json_object(content)
    if entries is not content or not all(map(_is_entry, entries.values())):
        raise ConfigError(
            f"{path} is no report of `verify --repair`; move it away, or name another folder"
        )
    return entries


def _is_entry(value: object) -> bool:
    entry = json_object(value)
    has_path = isinstance(entry.get("path", 0), str | None)
    return has_path and {"saved", "lost"} <= entry.keys()


def _write_report(
    path: Path, before: Mapping[str, dict[str, Any]], repairs: Mapping[str, Salvage]
) -> None:
    """Write the report; what it says of other shards stays."""
    entries = {**before, **{url: asdict(repair) for url, repair in repairs.items()}}
    replace_file(path, json.dumps(entries, indent=1, sort_keys=True) + "\n")


def _is_same(source: str | None, url: str) -> bool:
    """Whether the shard that a report names is this one."""
    if source is None or source == reported_name(url):
        return source is not None
    return is_local(url) and os.path.realpath(source) == os.path.realpath(url)
