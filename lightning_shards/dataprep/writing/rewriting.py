"""The writer of data sets from a catalog: it plans the shards, writes them, and then their index.

A shard is a pure function of its samples, so any number of processes writes the same bytes, and a
run that was killed goes on with the shards that are missing in its journal. The index is written
last: a folder with an index is complete.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.input_files import InputExtent, InputFiles
from lightning_shards.dataprep.processes import run_in_processes
from lightning_shards.dataprep.writing.catalog import Catalog
from lightning_shards.dataprep.writing.class_files import require_no_other_classes, write_classes
from lightning_shards.dataprep.writing.journal import Journal, shard_name, shard_pattern
from lightning_shards.dataprep.writing.keys import check_new_field
from lightning_shards.dataprep.writing.packing import (
    DuplicateKeys,
    Packing,
    assign,
    split_names,
    with_unique_keys,
)
from lightning_shards.dataprep.writing.tar_writer import (
    WrittenShard,
    as_bytes,
    list_shards,
    read_back,
    tar_size,
    write_shard,
)
from lightning_shards.errors import ConfigError, SampleError, ShardError
from lightning_shards.shards.files import make_folder
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.tables import TableStore

RawSample = dict[str, Any]
"""A sample as a dict: `__key__`, and the contents of each member by field."""

_FILTER_CHUNK: Final = 1024
_NO_CLASSES: Final[Mapping[str, int]] = {}
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

Listed = tuple[str, list[InputExtent]]
"""The key of a sample and the extents of its members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The changes made to each sample. Functions must be picklable and deterministic.

    Attributes:
        rename: New field names by old ones.
        only: The fields (by new name) that are kept; empty: all.
        transform: A function of a sample that returns the sample to write, with the same key.
        keeps: A function that decides whether an unchanged sample is kept.
        settings: Plain values by name that identify this edit.
    """

    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    only: tuple[str, ...] = ()
    transform: Callable[[RawSample], RawSample] | None = None
    keeps: Callable[[RawSample], bool] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, sample: RawSample) -> RawSample:
        """The sample to write."""
        key = sample["__key__"]
        edited: RawSample = {}
        for name, data in sample.items():
            new = self.rename.get(name, name)
            if new in edited:
                old = next(old for old in sample if old != new and self.rename.get(old) == new)
                raise SampleError(f"sample {key!r} has {old!r} renamed to {new!r}, which it has")
            if not self.only or new in self.only or name == "__key__":
                edited[new] = data
        if self.transform is None:
            return edited
        changed = call(self.transform, edited, key)
        if isinstance(changed, dict):
            given = cast("RawSample", changed)
            if given.get("__key__") == key:
                return given
        raise SampleError(f"sample {key!r}: the function must give a sample with the same key")

    @property
    def is_needed(self) -> bool:
        """Whether any sample could change."""
        return bool(self.rename or self.only or self.transform)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where and how shards are written; no setting here but the prefix changes a byte.

    Attributes:
        folder: Folder of the data set, or of the folders of its splits.
        cache: Where member tables are kept, for the first run that trains on the shards.
        prefix: Prefix of the names of shards; with splits, their names are used instead.
        processes: Number of processes that write at the same time.
        show_progress: Whether a line counts shards on stderr; None does so on a terminal.
    """

    folder: Path
    cache: CacheFolder
    prefix: str = "shard"
    processes: int = 1
    show_progress: bool | None = None


class DataSet(NamedTuple):
    """One data set that was written.

    Attributes:
        urls: The pattern of its shards.
        shards: Number of shards.
        samples: Number of samples.
        size_bytes: Size of all shards.
        members_per_sample: Average number of members of a sample in the first shard.
        payload_share: Bytes of its members, divided by those that they take in the tar.
        fields: How many samples have each field, by name in order.
    """

    urls: str
    shards: int
    samples: int
    size_bytes: int
    members_per_sample: float
    payload_share: float
    fields: dict[str, int]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The data sets that a run has written.

    Attributes:
        data_sets: Data sets by split ("" if there are no splits).
        kept_shards: Number of shards that an earlier run had written already.
    """

    data_sets: dict[str, DataSet]
    kept_shards: int


def rewrite(
    catalog: Catalog,
    packing: Packing,
    output: Output,
    edit: Edit = Edit(),
    *,
    duplicate_keys: DuplicateKeys = "refuse",
    classes: Mapping[str, int] = _NO_CLASSES,
) -> Rewritten:
    """Write the samples of a catalog to shards, or go on where a run with these arguments ended.

    `classes` are the numbers of classes by name, for a `classes.json` beside the shards.

    Raises:
        ConfigError: The folder holds something else, or the packing does not fit the samples.
        SampleError: A sample cannot be written or edited.
        DamagedShardError: A file was changed after it was listed.
        WorkerError: A process died.
    """
    catalog = with_unique_keys(catalog, duplicate_keys)
    prefixes = _prefixes(split_names(catalog, packing), output.prefix)
    for split in prefixes:
        require_no_other_classes(output.folder / split, classes)
    with Journal(output.folder, _settings(catalog, packing, edit), prefixes) as journal:
        is_kept = None if edit.keeps is None else _filtered(catalog, edit, output, journal)
        plan = assign(catalog, packing, is_kept)
        named = _named(plan, prefixes)
        done = {shard_id: journal.written(*shard_id) for shard_id in named}
        kept_shards = sum(shard is not None for shard in done.values())
        missing = {shard_id: named[shard_id] for shard_id, shard in done.items() if shard is None}
        done |= _write_missing(catalog, missing, edit, output, journal)
        data_sets: dict[str, DataSet] = {}
        for split, prefix in prefixes.items():
            folder = make_folder(output.folder, split)
            write_classes(folder, classes)
            data_sets[split] = _finish(folder, split, prefix, done, output.cache)
    return Rewritten(data_sets, kept_shards)


def _settings(catalog: Catalog, packing: Packing, edit: Edit) -> dict[str, Any]:
    """The settings that must be equal in a run that continues this one."""
    return {
        "samples": len(catalog),
        "digest of the input files": catalog.fingerprint(),
        **asdict(packing),
        **edit.settings,
    }


def _named(
    plan: Mapping[str, Sequence[NDArray[np.int64]]], prefixes: Mapping[str, str]
) -> dict[tuple[str, str], NDArray[np.int64]]:
    """The numbers of the samples of each shard, by split and name."""
    return {
        (split, shard_name(prefixes[split], number)): numbers
        for split, shards in plan.items()
        for number, numbers in enumerate(shards)
    }


def call(function: Callable[[RawSample], Any], sample: RawSample, key: str) -> Any:
    """The result of a user's function for a sample.

    Raises:
        SampleError: The function raised an error, or exits; the message names the sample.
    """
    try:
        return function(sample)
    except ShardError:
        raise
    except (Exception, SystemExit) as error:
        raise SampleError(f"sample {key!r}: {type(error).__name__}: {error}") from error


class _ShardJob(NamedTuple):
    """One shard to write."""

    split: str
    path: Path
    samples: list[Listed]


def _prefixes(splits: list[str], prefix: str) -> dict[str, str]:
    """The prefix of shards by folder, after a check that all are safe as file names."""
    for name in [prefix, *filter(None, splits)]:
        if not _SPLIT_NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a split or a prefix: take letters, digits, - and _"
            )
    return {split: split or prefix for split in splits}


def _listed(catalog: Catalog, numbers: NDArray[np.int64]) -> list[Listed]:
    return [(catalog.key(number), catalog.extents(number)) for number in numbers.tolist()]


def _write_missing(
    catalog: Catalog,
    missing: Mapping[tuple[str, str], NDArray[np.int64]],
    edit: Edit,
    output: Output,
    journal: Journal,
) -> dict[tuple[str, str], WrittenShard | None]:
    """Write these shards, and return them by split and name."""
    jobs = (
        _ShardJob(split, output.folder / split / name, _listed(catalog, numbers))
        for (split, name), numbers in missing.items()
    )
    for split in dict.fromkeys(split for split, _ in missing):
        make_folder(output.folder, split)
    write = partial(_write, edit=edit, cache=output.cache)
    done: dict[tuple[str, str], WrittenShard | None] = {}
    where = str(output.folder)
    with progress_line("wrote", len(missing), where, show=output.show_progress) as step:
        for job, shard in run_in_processes(write, jobs, output.processes):
            journal.note(job.split, shard)
            done[job.split, shard.name] = shard
            step()
    return done


def _write(job: _ShardJob, *, edit: Edit, cache: CacheFolder) -> WrittenShard:
    """Write one shard, and its member table by reading it back."""
    with InputFiles() as files:
        shard = write_shard(job.path, _edited(job.samples, files, edit))
    read_back(job.path, shard, TableStore(cache, with_crc32=True))
    return shard


def _edited(
    samples: list[Listed], files: InputFiles, edit: Edit
) -> Iterator[tuple[str, Iterator[tuple[str, bytes]]]]:
    for key, extents in samples:
        if edit.is_needed:
            before = _read(key, extents, files)
            sample = edit(before)
            for name in sample.keys() - before.keys():
                check_new_field(name)
            fields = ((name, as_bytes(data, key, name)) for name, data in sample.items())
            yield key, (pair for pair in fields if pair[0] != "__key__")
        else:
            yield key, ((extent.field, files.read(extent)) for extent in extents)
    files.require_unchanged()  # the shard gets its name only after this


def _read(key: str, extents: list[InputExtent], files: InputFiles) -> RawSample:
    return {"__key__": key} | {extent.field: files.read(extent) for extent in extents}


def _filtered(catalog: Catalog, edit: Edit, output: Output, journal: Journal) -> NDArray[np.bool_]:
    """Which samples the filter keeps; all are read, in groups that the journal remembers."""
    starts = range(0, len(catalog), _FILTER_CHUNK)
    missing = [start for start in starts if journal.fact(f"kept {start}") is None]
    jobs = (
        (start, _listed(catalog, np.arange(start, min(start + _FILTER_CHUNK, len(catalog)))))
        for start in missing
    )
    with progress_line("filtered", len(missing), "chunks", show=output.show_progress) as step:
        keep = partial(_keep, edit=edit)
        for (start, _), kept in run_in_processes(keep, jobs, output.processes):
            journal.note_fact(f"kept {start}", kept.hex())
            step()
    packed = b"".join(bytes.fromhex(journal.fact(f"kept {start}") or "") for start in starts)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    return bits[: len(catalog)].astype(np.bool_)


def _keep(job: tuple[int, list[Listed]], *, edit: Edit) -> bytes:
    """One bit for each sample that tells whether the filter keeps it."""
    keeps = edit.keeps
    with InputFiles() as files:
        kept = [
            keeps is None or bool(call(keeps, _read(key, extents, files), key))
            for key, extents in job[1]
        ]
    return np.packbits(kept).tobytes()


def _finish(
    folder: Path,
    split: str,
    prefix: str,
    done: Mapping[tuple[str, str], WrittenShard | None],
    cache: CacheFolder,
) -> DataSet:
    """Write the index of one data set."""
    shards = [shard for (its_split, _), shard in done.items() if its_split == split and shard]
    shards.sort(key=lambda shard: (len(shard.name), shard.name))
    list_shards(folder, shards)
    sizes = TableStore(cache).table_now(folder / shards[0].name).sizes
    fields: Counter[str] = Counter()
    for shard in shards:
        fields.update(shard.fields)
    return DataSet(
        shard_pattern(folder, shards, prefix),
        len(shards),
        sum(shard.samples for shard in shards),
        sum(shard.size_bytes for shard in shards),
        len(sizes) / shards[0].samples,
        int(sizes.sum()) / sum(map(tar_size, sizes.tolist())),
        dict(sorted(fields.items())),
    )
