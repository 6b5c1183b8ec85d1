"""The writer of data sets from listed samples: it plans the shards and writes them, then the index.

A shard is a pure function of its samples, so any number of processes writes the same bytes, and a
run that was killed goes on with the shards that are not finished. The index is written last: a
folder with an index is complete.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lightning_shards.dataprep.finished import FinishedShards, shard_name, shard_pattern
from lightning_shards.dataprep.listing import Listing, require_no_other_classes, write_classes
from lightning_shards.dataprep.packing import (
    InputFiles,
    InputSample,
    Packing,
    assign,
    require_unique_keys,
    split_names,
)
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.tar_writer import (
    WrittenShard,
    as_bytes,
    read_back,
    write_shard,
)
from lightning_shards.errors import ConfigError, SampleError, ShardError
from lightning_shards.shards.beside import WIDS
from lightning_shards.shards.files import make_folder
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore

RawSample = dict[str, Any]
"""A sample as a dict: `__key__`, and the contents of each member by field."""

_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

_ShardId = tuple[str, str]
"""The split of a shard, and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The changes made to each sample. Functions must be picklable and deterministic.

    Attributes:
        transform: A function of a sample that returns the sample to write, with the same key.
        keeps: A function that decides whether an unchanged sample is kept.
        settings: Plain values by name that identify this edit.
    """

    transform: Callable[[RawSample], Any] | None = None
    keeps: Callable[[RawSample], Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where and how shards are written; no setting here but the prefix changes a byte.

    Attributes:
        folder: Folder of the data set, or of the folders of its splits.
        cache: Where member tables are kept, for the first run that trains on the shards.
        prefix: Prefix of the names of shards; with splits, their names are used instead.
        processes: Number of processes that write at the same time.
    """

    folder: Path
    cache: CacheFolder
    prefix: str = "shard"
    processes: int = 1


class DataSet(NamedTuple):
    """One data set that was written.

    Attributes:
        urls: The pattern of its shards.
        shards: Number of shards.
        samples: Number of samples.
        size_bytes: Size of all shards.
        fields: How many samples have each field, by name in order.
        kept_shards: Number of shards that an earlier run had written already.
    """

    urls: str
    shards: int
    samples: int
    size_bytes: int
    fields: dict[str, int]
    kept_shards: int


class _ShardJob(NamedTuple):
    """One shard to write."""

    split: str
    path: Path
    samples: list[InputSample]


def rewrite(
    listing: Listing,
    packing: Packing,
    output: Output,
    edit: Edit = Edit(),
) -> dict[str, DataSet]:
    """The data sets by split ("" if there are none), after writing what is not finished of them.

    Raises:
        ConfigError: The folder holds something else, or the packing does not fit the samples.
        SampleError: A sample cannot be written or edited.
        DamagedShardError: A file was changed after it was listed.
        WorkerError: A process died.
    """
    samples = listing.samples
    require_unique_keys(samples)
    prefixes = _prefixes(split_names(samples, packing), output.prefix)
    for split in prefixes:
        require_no_other_classes(output.folder / split, listing.classes)
    input_digest = {"samples": len(samples), "digest of the input files": _digest(samples)}
    settings = input_digest | asdict(packing) | dict(edit.settings)
    with closing(FinishedShards(output.folder, settings, prefixes)) as finished:
        is_kept = None if edit.keeps is None else _filtered(samples, edit.keeps, output.processes)
        plan: dict[_ShardId, list[InputSample]] = {
            (split, shard_name(prefixes[split], number)): [samples[sample] for sample in numbers]
            for split, shards in assign(samples, packing, is_kept).items()
            for number, numbers in enumerate(shards)
        }
        done, kept = _write_missing(plan, edit, output, finished)
        data_sets: dict[str, DataSet] = {}
        for split, prefix in prefixes.items():
            folder = make_folder(output.folder, split)
            write_classes(folder, listing.classes)
            shards = [done[shard_id] for shard_id in plan if shard_id[0] == split]
            if kept[split] < len(shards) or not (folder / WIDS).exists():
                finished.list_shards(split, shards)
            data_sets[split] = _data_set(folder, prefix, shards, kept[split])
    return data_sets


def _prefixes(splits: list[str], prefix: str) -> dict[str, str]:
    """The prefix of shards by folder, after a check that all are safe as file names."""
    for name in [prefix, *filter(None, splits)]:
        if not _SPLIT_NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a split or a prefix: take letters, digits, - and _"
            )
    return {split: split or prefix for split in splits}


def _digest(samples: Iterable[InputSample]) -> str:
    """The identity of these samples, their members and files: 16 hex digits."""
    digest = hashlib.sha256()
    for sample in samples:
        members = list(map(tuple, sample.members))
        text = repr((sample.key, sample.split, members))
        digest.update(text.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:16]


def _write_missing(
    plan: Mapping[_ShardId, list[InputSample]], edit: Edit, output: Output, finished: FinishedShards
) -> tuple[dict[_ShardId, WrittenShard], Counter[str]]:
    """Write what is not finished; gives all shards, and how many were there already by split."""
    found = {shard_id: finished.written(*shard_id) for shard_id in plan}
    done = {shard_id: shard for shard_id, shard in found.items() if shard is not None}
    kept = Counter(split for split, _ in done)
    missing = [
        _ShardJob(split, make_folder(output.folder, split) / name, plan[split, name])
        for split, name in plan
        if (split, name) not in done
    ]
    write = partial(_write, transform=edit.transform, cache=output.cache)
    results = map_parallel(write, missing, output.processes, most_at_once=1)
    with closing(results):
        bar = tqdm(results, "wrote", len(missing), unit=" shards", disable=None)
        for job, shard in zip(missing, bar, strict=True):
            finished.note(job.split, shard)
            done[job.split, shard.name] = shard
    return done, kept


def _write(
    job: _ShardJob, *, transform: Callable[[RawSample], Any] | None, cache: CacheFolder
) -> WrittenShard:
    """Write one shard, and its member table by reading it back."""
    with InputFiles() as files:
        samples = (_read(sample, files) for sample in job.samples)
        if transform is not None:
            samples = (_transformed(transform, sample) for sample in samples)
        fields = ((sample.pop("__key__"), list(sample.items())) for sample in samples)
        shard = write_shard(job.path, fields)
    read_back(job.path, shard, TableStore(cache, with_crc32=True))
    return shard


def _read(sample: InputSample, files: InputFiles) -> RawSample:
    fields = {member.field: files.read(member) for member in sample.members}
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
    except ShardError:
        raise
    except (Exception, SystemExit) as error:
        raise SampleError(f"sample {key!r}: {type(error).__name__}: {error}") from error


def _filtered(
    samples: Sequence[InputSample], keeps: Callable[[RawSample], Any], processes: int
) -> NDArray[np.bool_]:
    """Which samples the filter keeps; all of them are read."""
    results = map_parallel(partial(_keep, keeps=keeps), samples, processes)
    with closing(results):
        bar = tqdm(results, "filtered", len(samples), unit=" samples", disable=None)
        return np.fromiter(bar, np.bool_, len(samples))


def _keep(sample: InputSample, *, keeps: Callable[[RawSample], Any]) -> bool:
    with InputFiles() as files:
        return bool(_called(keeps, _read(sample, files)))


def _data_set(folder: Path, prefix: str, shards: list[WrittenShard], kept_shards: int) -> DataSet:
    fields: Counter[str] = Counter()
    for shard in shards:
        fields.update(shard.fields)
    return DataSet(
        shard_pattern(folder, shards, prefix),
        len(shards),
        sum(shard.samples for shard in shards),
        sum(shard.size_bytes for shard in shards),
        dict(sorted(fields.items())),
        kept_shards,
    )
