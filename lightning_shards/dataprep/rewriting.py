"""The writer of data sets from listed samples: it plans the shards and writes them, then the index.

A shard is a pure function of its samples, so any number of processes writes the same bytes, and a
run that was killed goes on with the shards that are not finished. The index is written last: a
folder with an index is complete.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, cast

from tqdm import tqdm

from lightning_shards.dataprep.finished import FinishedShards, shard_name, shard_pattern
from lightning_shards.dataprep.listing import Listing
from lightning_shards.dataprep.packing import (
    InputSample,
    Packing,
    assign,
    read_extent,
    require_sound,
)
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.tar_writer import WrittenShard, as_bytes, write_shard
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.shards.classes import CLASSES
from lightning_shards.shards.files import CacheFolder, make_folder, replace_file
from lightning_shards.shards.tables import TableStore

RawSample = dict[str, Any]
"""A sample as a dict: `__key__`, and the contents of each member by field."""

_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

_CHUNK = 64  # samples that a process filters together

_Task = tuple[Path, list[InputSample]]
"""A shard to write: its path, and its samples."""


class Edit(NamedTuple):
    """The changes made to each sample. Functions must be picklable and deterministic.

    Attributes:
        transform: A function of a sample that returns the sample to write, with the same key.
        keeps: A function that decides whether an unchanged sample is kept.
        settings: Plain values by name that identify this edit.
    """

    transform: Callable[[RawSample], Any] | None = None
    keeps: Callable[[RawSample], Any] | None = None
    settings: Mapping[str, Any] = {}


def rewrite(
    listing: Listing,
    packing: Packing,
    folder: Path,
    edit: Edit,
    *,
    cache: CacheFolder,
    processes: int = 1,
) -> dict[str, dict[str, Any]]:
    """What was written by split ("" if there are none): urls, shards, samples, size_bytes, fields.

    `kept_shards` were written already by an earlier run. No number of processes changes a byte.

    Raises:
        ConfigError: The folder holds something else, or the packing does not fit the samples.
        SampleError: A sample cannot be written or edited.
        DamagedShardError: A file was changed after it was listed.
    """
    require_sound(samples := listing.samples)
    settings = {"digest of the input files": _digest(samples), **asdict(packing), **edit.settings}
    samples = _filtered(samples, edit.keeps, processes)
    plan = assign(samples, packing)
    prefixes = {split: _prefix(split) for split in plan}
    write = partial(_write, transform=edit.transform, cache=cache)
    data_sets: dict[str, dict[str, Any]] = {}
    with closing(FinishedShards(folder, settings, prefixes)) as finished:
        for split, shards in plan.items():
            place, prefix = make_folder(folder, split), prefixes[split]
            tasks = [
                (place / shard_name(prefix, shard), [samples[int(at)] for at in numbers])
                for shard, numbers in enumerate(shards)
            ]
            written, kept = _write_missing(split, tasks, write, processes, finished)
            if listing.classes:
                in_order = dict(sorted(listing.classes.items(), key=itemgetter(1)))
                replace_file(place / CLASSES, json.dumps(in_order, indent=1) + "\n")
            finished.list_shards(split, written)
            urls = shard_pattern(place, written, prefix)
            data_sets[split] = {"urls": urls, **_totals(written), "kept_shards": kept}
    return data_sets


def _prefix(split: str) -> str:
    """The prefix of the shards of a split, whose name is also that of a folder."""
    if split and not _SPLIT_NAME.fullmatch(split):
        raise ConfigError(f"{split!r} cannot name a split: take letters, digits, - and _")
    return split or "shard"


def _digest(samples: Iterable[InputSample]) -> str:
    """The identity of these samples, their members and files: 16 hex digits."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr(sample).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:16]


def _filtered(
    samples: Sequence[InputSample], keeps: Callable[[RawSample], Any] | None, processes: int
) -> Sequence[InputSample]:
    """The samples that the filter keeps, if there is one; all of them are read."""
    if keeps is None:
        return samples
    chunks = [samples[start : start + _CHUNK] for start in range(0, len(samples), _CHUNK)]
    results = map_parallel(partial(_kept, keeps=keeps), chunks, processes)
    bar = tqdm(results, "filtered", len(chunks), unit=f" x {_CHUNK} samples", disable=None)
    return [sample for kept in bar for sample in kept]


def _kept(
    samples: Sequence[InputSample], *, keeps: Callable[[RawSample], Any]
) -> list[InputSample]:
    return [sample for sample in samples if _called(keeps, _read(sample))]


def _write_missing(
    split: str,
    tasks: Sequence[_Task],
    write: Callable[[_Task], WrittenShard],
    processes: int,
    finished: FinishedShards,
) -> tuple[list[WrittenShard], int]:
    """Write what is not finished of a split; gives all shards, and how many were there already."""
    found = [finished.written(split, path.name) for path, _ in tasks]
    done = {shard.name: shard for shard in found if shard is not None}
    missing = [(path, samples) for path, samples in tasks if path.name not in done]
    results = map_parallel(write, missing, processes)
    for shard in tqdm(results, "wrote", len(missing), unit=" shards", disable=None):
        finished.note(split, shard)
        done[shard.name] = shard
    return [done[path.name] for path, _ in tasks], len(tasks) - len(missing)


def _write(
    task: _Task, *, transform: Callable[[RawSample], Any] | None, cache: CacheFolder
) -> WrittenShard:
    """Write one shard, and its member table by reading it back."""
    path, listed = task
    samples = map(_read, listed)
    if transform is not None:
        samples = (_transformed(transform, sample) for sample in samples)
    shard = write_shard(path, ((each.pop("__key__"), list(each.items())) for each in samples))
    TableStore(cache, with_crc32=True).table_of(path, expected_samples=shard.samples)
    return shard


def _read(sample: InputSample) -> RawSample:
    fields = {member.field: read_extent(member) for member in sample.members}
    return {"__key__": sample.key} | fields


def _transformed(transform: Callable[[RawSample], Any], sample: RawSample) -> RawSample:
    key = sample["__key__"]
    changed = _called(transform, sample)
    given = cast("RawSample", changed) if isinstance(changed, dict) else {}
    if given.get("__key__") != key:
        raise SampleError(f"sample {key!r}: the function must give a sample with the same key")
    return {
        name: data if name == "__key__" else as_bytes(data, key, name)
        for name, data in given.items()
    }


def _called(function: Callable[[RawSample], Any], sample: RawSample) -> object:
    """The result of a user's function, whose errors name the sample."""
    key = sample["__key__"]
    try:
        return function(sample)
    except (Exception, SystemExit) as error:
        raise SampleError(f"sample {key!r}: {type(error).__name__}: {error}") from error


def _totals(shards: list[WrittenShard]) -> dict[str, Any]:
    fields = sum((Counter(shard.fields) for shard in shards), Counter[str]())
    return {
        "shards": len(shards),
        "samples": sum(shard.samples for shard in shards),
        "size_bytes": sum(shard.size_bytes for shard in shards),
        "fields": dict(sorted(fields.items())),
    }
