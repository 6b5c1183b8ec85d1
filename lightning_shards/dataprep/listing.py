"""Listing of the samples in folders of files, tables and tars; what is in no sample is counted."""

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO, cast

from tqdm import tqdm

from lightning_shards.dataprep.packing import (
    InputExtent,
    InputSample,
    inline,
    input_file_at,
    whole_file,
)
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.tar_writer import (
    check_field,
    check_sample,
    escape_key,
    is_hidden,
    key_of_path,
)
from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    IndexMismatchError,
    SampleError,
    ShardNotFoundError,
)
from lightning_shards.shards.classes import (
    CLASS_SUFFIX,
    CLASSES,
    ClassNames,
    known_classes,
    read_class_file,
)
from lightning_shards.shards.counts import CountClaim, believed_claims
from lightning_shards.shards.files import open_regular, replace_file
from lightning_shards.shards.index import names_by_folder
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import (
    Member,
    OtherEntry,
    group_members,
    split_name,
    walk_members,
)
from lightning_shards.shards.urls import split_url

IMAGE_FIELDS: Final = frozenset(
    {"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm"}
)
TABLE_SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

_ROWS_AT_ONCE = 4096
_NUMBER = re.compile(r"-?\d+(\.\d+)?")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of an input, and counts of everything else in it.

    Attributes:
        samples: The samples, in the order in which they were listed.
        ignored: Number of files or members that are in no sample, by reason.
        classes: Numbers of the classes by name, in the order of the numbers; may be empty.
        joined: Number of runs of members that were apart from the rest of their sample in a tar.
    """

    samples: list[InputSample]
    ignored: Counter[str] = field(default_factory=Counter[str])
    classes: Mapping[str, int] = field(default_factory=dict[str, int])
    joined: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The meaning of the columns of a table.

    Attributes:
        files: Fields by columns that name files, below `root` unless the path is absolute. An empty
            field stands for the file's own suffix.
        values: Fields by columns with contents: text is stored as it is, other values as JSON.
        key: The column of the keys, which are escaped; None: the path of the first file, without
            `/` and `..` at its beginning.
        class_name: A column with names of classes, which are numbered as field `cls`.
        split: The column with the split of each sample.
        root: The folder of the files.
    """

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    key: str | None = None
    class_name: str | None = None
    split: str | None = None
    root: str = "."

    def __post_init__(self) -> None:
        """Refuse columns without contents or without keys, and fields that would not be found."""
        if not (self.files or self.values):
            raise ConfigError("no column has contents: name columns of files or of values")
        if not (self.files or self.key):
            raise ConfigError("samples without files need a column of keys; name it")
        for name in (*filter(None, self.files.values()), *self.values.values()):
            check_field(name)

    @property
    def names(self) -> list[str]:
        """All columns that are read, each once."""
        others = filter(None, (self.key, self.class_name, self.split))
        return list(dict.fromkeys([*self.files, *self.values, *others]))


def require_apart(outputs: Iterable[Path], folders: Iterable[Path], *, below: bool = False) -> None:
    """Refuse folders to write that are folders of the input, or, if asked, anywhere below them.

    The same command, given again, would take what it has written for more samples, and so would
    training on all tars of the folder.

    Raises:
        ConfigError: One is.
    """
    inputs = {folder.resolve() for folder in folders}
    for output in outputs:
        real = output.resolve()
        taken = inputs & {real, *(real.parents if below else ())}
        if taken:
            raise ConfigError(
                f"{output} is in {taken.pop()}, where samples are read, and a next run would take "
                "its shards for samples; name another output folder"
            )


# --- folders


def list_folder(
    folder: str,
    *,
    has_classes: bool = True,
    given: ClassNames | None = None,
) -> Listing:
    """One sample for all files of a folder whose names differ only in the suffix.

    The key is the path below `folder` without suffix, escaped. With `has_classes` the folders in it
    are classes, with new numbers or the `given` ones, and a sample gets that of its class as field
    `cls`.

    Raises:
        ShardNotFoundError: There is no such folder.
        ConfigError: There are files beside the folders of classes, or a class is not among the
            given ones.
        SampleError: Two files of a sample have the same suffix, or both are images.
    """
    ignored: Counter[str] = Counter()
    files_by_stem: dict[str, dict[str, str]] = {}
    for path in _files_below(folder, ignored):
        below, base = os.path.split(os.path.relpath(path, folder))
        parts = base.rpartition(".")
        if all(parts):
            stem = os.path.join(below, parts[0])  # noqa: PTH118 - paths stay strings here
            _add_file(files_by_stem.setdefault(stem, {}), parts[2].lower(), path)
        else:
            ignored["without suffix"] += 1
    classes: dict[str, int] = {}
    if has_classes:
        classes = number_classes(_class_folders(files_by_stem, folder), given)
    samples: list[InputSample] = []
    for stem, files in files_by_stem.items():
        members = [whole_file(suffix, path) for suffix, path in files.items()]
        if classes:
            number = classes[stem.partition("/")[0]]
            members.append(inline(CLASS_SUFFIX, str(number).encode()))
        samples.append(_sample(escape_key(stem), members))
    return Listing(samples, ignored, classes)


def _sample(key: str, members: Sequence[InputExtent], split: str = "") -> InputSample:
    """A sample, after a check that it can be read back from a tar."""
    check_sample(key, [member.field for member in members])
    return InputSample(key, tuple(members), split)


def _files_below(folder: str, ignored: Counter[str]) -> Iterator[str]:
    """The visible files, sorted; links are followed."""
    if not os.path.isdir(folder):  # noqa: PTH112 - paths stay strings here
        raise ShardNotFoundError(f"{folder} is no folder; check the path and the mount")
    visited: set[str] = set()
    for below, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        real = os.path.realpath(below)
        if real in visited:
            raise ConfigError(f"{below} is reached twice, by a link; remove the link")
        visited.add(real)
        hidden = sum(name.startswith(".") for name in folders + names)
        ignored.update({"hidden": hidden} if hidden else {})
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(below, name) for name in sorted(names) if name[0] != ".")  # noqa: PTH118


def _raise(error: OSError) -> None:
    raise FileAccessError(
        f"{error.filename} cannot be listed: {error.strerror}; look at its rights, or move it away"
    ) from error


def _add_file(files: dict[str, str], suffix: str, path: str) -> None:
    rivals = IMAGE_FIELDS if suffix in IMAGE_FIELDS else {suffix}
    for other in rivals & files.keys():
        raise SampleError(
            f"{files[other]} and {path} would be one sample with two images, or one member; rename "
            "one, as files whose names differ in the suffix alone are one sample"
        )
    files[suffix] = path


def _class_folders(stems: Iterable[str], folder: str) -> set[str]:
    """The names of the folders that are classes."""
    parts = [stem.partition("/") for stem in stems]
    for name, slash, _ in parts:
        if not slash:
            raise ConfigError(
                f"{folder} has files beside its folders ({name}), so the folders are no classes; "
                "move the files, or pack without classes"
            )
    return {name for name, _, _ in parts}


# --- tables


def list_table(path: str, columns: Columns, given: ClassNames | None = None) -> Listing:
    """One sample for each row of a table; an empty value gives no member.

    Args:
        path: The table.
        columns: The meaning of its columns.
        given: The numbers of classes, in place of new ones.

    Raises:
        ShardNotFoundError: The table, or a file that a row names, does not exist.
        ConfigError: The table cannot be read, or a row lacks a column.
        SampleError: A row does not give a sample.
    """
    samples: list[InputSample] = []
    labels: list[str] = []
    try:
        for row in read_rows(path, columns.names):
            samples.append(_sample_of_row(row, columns))
            if columns.class_name:
                labels.append(_required(row, columns.class_name))
    except (ConfigError, SampleError) as error:
        raise type(error)(f"{path}, row {len(samples) + 1}: {error}") from error
    if not columns.class_name:
        return Listing(samples)
    classes = number_classes(labels, given)
    for number, label in enumerate(labels):
        member = inline(CLASS_SUFFIX, str(classes[label]).encode())
        others = samples[number].members[:-1]
        samples[number] = samples[number]._replace(members=(*others, member))
    return Listing(samples, classes=classes)


def read_rows(path: str, names: Sequence[str]) -> Iterator[Row]:
    """The rows of a table, by the suffix of its name; of Parquet the columns of these names.

    Raises:
        ConfigError: The file is not a table, cannot be read as one, or lacks a column.
        FileAccessError: It is not a regular file, or this user may not read it.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise ConfigError(f"it is no table: their names end in {', '.join(TABLE_SUFFIXES)}")
    with os.fdopen(open_regular(path), encoding="utf-8-sig", newline="") as file:
        if suffix == ".parquet":
            rows = _parquet_rows(path, names)
        elif suffix in (".csv", ".tsv"):
            rows = _csv_rows(file, "," if suffix == ".csv" else "\t", names)
        else:
            rows = _json_rows(file)
        try:
            for row in rows:
                _require_columns(names, list(row))
                yield row
        except ConfigError:
            raise
        except (csv.Error, ValueError, RecursionError, OverflowError, OSError) as error:
            raise ConfigError(f"it cannot be read: {error}; correct it") from error


def _csv_rows(file: TextIO, delimiter: str, names: Sequence[str]) -> Iterator[Row]:
    reader = csv.DictReader(file, delimiter=delimiter, strict=True)
    _require_columns(names, reader.fieldnames or [])
    for row in reader:
        if None in row or None in row.values():
            raise ConfigError("it has not as many cells as the first line; correct it")
        yield row


def _json_rows(file: TextIO) -> Iterator[Row]:
    for line in file:
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ConfigError(f"it must be a JSON object, not {line.strip()[:40]!r}")
            yield cast("Row", row)


def _parquet_rows(path: str, names: Sequence[str]) -> Iterator[Row]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            "Parquet needs pyarrow, which is not installed: pip install 'lightning-shards[table]'"
        ) from error
    with parquet.ParquetFile(path) as file:
        _require_columns(names, file.schema_arrow.names)
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(names)):
            yield from batch.to_pylist()


def _require_columns(names: Iterable[str], present: Sequence[str]) -> None:
    """Check that each of these columns is there once: a row as a dict keeps the last of two."""
    for name in names:
        if present.count(name) != 1:
            what = "two columns" if name in present else "no column"
            raise ConfigError(f"the table has {what} {name!r}, but {', '.join(map(str, present))}")


def _sample_of_row(row: Row, columns: Columns) -> InputSample:
    """The sample of one row, of which a class comes last and has no number yet."""
    paths = {name: str(row[name]) for name in columns.files if not _is_empty(row[name])}
    members: list[InputExtent] = []
    for column, path in paths.items():
        suffix = columns.files[column] or os.path.splitext(path)[1][1:].lower()  # noqa: PTH122
        members.append(whole_file(suffix, os.path.join(columns.root, path)))  # noqa: PTH118
    for column, name in columns.values.items():
        if row[column] is not None and row[column] != "":
            members.append(inline(name, _contents(row[column])))
    if columns.class_name:
        members.append(inline(CLASS_SUFFIX, b""))
    split = _required(row, columns.split) if columns.split else ""
    if columns.key:
        return _sample(escape_key(_required(row, columns.key)), members, split)
    if not paths:
        raise SampleError("it names no file, and there is no column of keys; name one")
    return _sample(key_of_path(next(iter(paths.values()))), members, split)


def _required(row: Row, column: str) -> str:
    if _is_empty(row[column]):
        raise SampleError(f"the column {column!r} is empty; fill it in")
    return str(row[column])


def _is_empty(value: object) -> bool:
    """Whether there is no text; programs for tables put NaN where they have none."""
    return value is None or value == "" or value != value  # noqa: PLR0124 NaN alone


def _contents(value: object) -> bytes:
    """The bytes that are stored for a value."""
    if isinstance(value, bytes):
        return value
    try:
        return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except (TypeError, ValueError) as error:
        raise SampleError(f"a value cannot be stored: {error}; write it as text") from error


# --- tars


def list_tars(paths: Sequence[str], *, processes: int = 1) -> Listing:
    """The samples of local tars in file order; members that are apart in a tar are joined.

    The classes are those of `classes.json` beside the tars. The samples of each tar are counted
    against the files beside it, because new shards are well by checksums of their own.

    Raises:
        ShardNotFoundError: A tar does not exist.
        ConfigError: Tars of two folders have different classes.
        IndexMismatchError: A tar has another size or number of samples than a file beside it says.
        DamagedShardError: A tar is damaged.
        SampleError: A key or a field could not be written so that it reads back, or a member of a
            sample is a link.
    """
    known = known_classes(paths)
    counts = _counts_beside(paths)
    tasks = [(path, counts.get(path)) for path in paths]
    listings = map_parallel(_list_tar, tasks, processes)
    samples: list[InputSample] = []
    ignored, joined = Counter[str](), 0
    with closing(listings):
        for listing in tqdm(listings, "listed", len(tasks), unit=" tars", disable=None):
            samples += listing.samples
            ignored += listing.ignored
            joined += listing.joined
    return Listing(samples, ignored, {} if known is None else dict(known.numbers), joined)


def _counts_beside(paths: Sequence[str]) -> dict[str, CountClaim]:
    """The counts that files beside these local tars give for them, by path."""
    path_of = {split_url(path): path for path in paths}
    counts: dict[str, CountClaim] = {}
    with closing(Storages()) as storages:
        for folder, names in names_by_folder(path_of).items():
            claims = believed_claims(folder, names, path_of, storages)
            counts |= {path_of[folder, name]: claim for name, claim in claims.items()}
    return counts


def _list_tar(task: tuple[str, CountClaim | None]) -> Listing:
    path, claim = task
    others: list[OtherEntry] = []
    runs: list[tuple[str, dict[str, Member]]] = []
    first: dict[str, dict[str, Member]] = {}  # the first sample of each key
    repeated: set[str] = set()  # keys of two samples: what follows may belong to either
    joined = 0
    with open_tar(path) as data:
        members = list(walk_members(data, path, others=others))
        shown = (member for member in members if not is_hidden(member.name))
        for key, fields in group_members(shown, path):
            known = first.setdefault(key, fields)
            if known is not fields and not (key in repeated or known.keys() & fields.keys()):
                known |= fields
                joined += 1
                continue
            if known is not fields:
                repeated.add(key)
            runs.append((key, fields))
    _require_claimed(claim, sum(1 for _ in group_members(members, path)), path)
    _refuse_lost_links(others, first, path)
    source = input_file_at(path)

    def extent(suffix: str, member: Member) -> InputExtent:
        return InputExtent(suffix, source, member.offset, member.size, b"")

    try:
        samples = [
            _sample(key, [extent(suffix, member) for suffix, member in fields.items()])
            for key, fields in runs
        ]
    except SampleError as error:
        raise SampleError(
            f"{path}: {error}; or unpack the tar and pack the folder, whose names may be any"
        ) from error
    ignored = Counter(f"{entry.kind}s" for entry in others if entry.kind != "folder")
    ignored["members"] = len(members) - sum(len(sample.members) for sample in samples)
    return Listing(samples, +ignored, joined=joined)


def _require_claimed(claim: CountClaim | None, samples: int, path: str) -> None:
    """Compare the samples of a tar, as readers count them, with what a file beside it says."""
    if claim is not None and claim.samples != samples:
        raise IndexMismatchError(
            f"{path} changed since it was indexed: it holds {samples:,} samples, "
            f"{claim.samples:,} by {claim.source}; fetch it again, or, if it was written anew, run "
            "`lightning-shards index` on it or delete that file"
        )


def _refuse_lost_links(
    others: Iterable[OtherEntry], samples: Mapping[str, Mapping[str, Member]], path: str
) -> None:
    """Refuse links in the place of members; one to a member of its own name loses nothing."""
    for entry in others:
        key, suffix = split_name(entry.name) or ("", "")
        is_lost = entry.kind == "link" and key and suffix not in samples.get(key, ())
        if is_lost and not is_hidden(entry.name):
            raise SampleError(
                f"{path}: {entry.name!r} is a link, which has no data, and a sample would lose it; "
                "write the tar by GNU tar with --hard-dereference --dereference, or unpack it and "
                "pack the folder"
            )


# --- classes


def number_classes(names: Iterable[str], given: ClassNames | None = None) -> dict[str, int]:
    """The numbers of classes by name: those that are given, or else from 0 on.

    Names that are all numbers are numbered in the order of their values, so that 0, 1, 2 and so on
    stay what they are, also as 0.0, 1.0 and 2.0. Other names are in the order of their letters.

    >>> number_classes(["10", "9", "8"]), number_classes(["b", "a"])
    ({'8': 0, '9': 1, '10': 2}, {'a': 0, 'b': 1})

    Raises:
        ConfigError: A name is not among the given ones.
    """
    in_order = sorted(set(names))
    if given is not None:
        unknown = [name for name in in_order if name not in given.numbers]
        if unknown:
            raise ConfigError(
                f"{given.source} has no class {unknown[0]!r}"
                + f", nor {len(unknown) - 1:,} more" * (len(unknown) > 1)
                + "; add what is missing behind its last number, and pack all splits again by it"
            )
        return dict(given.numbers)
    if all(map(_NUMBER.fullmatch, in_order)):
        in_order.sort(key=float)
    return {name: number for number, name in enumerate(in_order)}


def given_classes(path: Path | None, *, has_classes: bool) -> ClassNames | None:
    """The classes in a file that the user named, if one was named.

    Raises:
        ConfigError: It does not exist, cannot be read, or is of another form, or the samples have
            no classes.
    """
    if path is None:
        return None
    classes = read_class_file(path)
    if classes is None:
        raise ConfigError(f"{path} cannot be read; name the {CLASSES} beside other shards")
    if not has_classes:
        raise ConfigError(
            f"{path} gives numbers to classes, and there are none; name a --class-column, or leave "
            "out --no-classes"
        )
    return classes


def require_no_other_classes(folder: Path, classes: Mapping[str, int]) -> None:
    """Check that a folder has no other `classes.json` than these classes would give.

    Raises:
        ConfigError: It has another one.
    """
    path = folder / CLASSES
    if not classes or not path.exists():
        return
    try:
        is_same = read_class_file(path) == ClassNames(classes, str(path))
    except ConfigError:
        is_same = False
    if not is_same:
        raise ConfigError(
            f"{path} is there and does not have the {len(classes):,} classes of these samples; "
            "remove it, or name another folder"
        )


def write_classes(folder: Path, classes: Mapping[str, int]) -> None:
    """Write the file in one step, in the order of the numbers; nothing if there are no classes."""
    if classes:
        in_order = dict(sorted(classes.items(), key=lambda item: item[1]))
        replace_file(folder / CLASSES, json.dumps(in_order, indent=1) + "\n")
