"""Listing of the samples in folders of files, tables and tars; what is in no sample is counted."""

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import starmap
from pathlib import Path
from typing import Any, Final, NamedTuple

from tqdm import tqdm

from lightning_shards.dataprep.packing import InputExtent, InputSample, inline, whole_file
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.survey import PASSED_OVER, describe_table
from lightning_shards.dataprep.tar_writer import as_bytes, escape_key, is_image, key_of_path
from lightning_shards.errors import ConfigError, SampleError, require_library
from lightning_shards.shards.classes import CLASS_SUFFIX, ClassNames, known_classes
from lightning_shards.shards.counts import claimed_counts
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import split_url

TABLE_SUFFIXES: Final = (".csv", ".jsonl", ".parquet")

_NUMBER = re.compile(r"-?\d+(\.\d+)?")

Row = Mapping[str, Any]


class Listing(NamedTuple):
    """The samples of an input, and the number of everything else in it.

    Attributes:
        samples: The samples, in the order in which they were listed.
        ignored: Number of files or members that are in no sample.
        classes: Numbers of the classes by name; may be empty.
    """

    samples: list[InputSample]
    ignored: int = 0
    classes: Mapping[str, int] = {}


class Columns(NamedTuple):
    """The meaning of the columns of a table.

    Attributes:
        files: Columns that name files, each with its field; paths are below the folder of the
            table unless they are absolute. An empty field stands for the file's own suffix.
        values: Columns with contents, each with its field: bytes and text are stored as they are,
            other values by the suffix of the field, as `as_bytes` says.
        key: The column of the keys, which are escaped; None: the path of the first file, without
            `/` and `..` at its beginning.
        class_column: A column with names of classes, which are numbered as field `cls`.
        split_column: The column with the split of each sample.
    """

    files: Sequence[tuple[str, str]] = ()
    values: Sequence[tuple[str, str]] = ()
    key: str | None = None
    class_column: str | None = None
    split_column: str | None = None


# --- folders


def list_folder(
    folder: str, *, has_classes: bool = True, given: ClassNames | None = None
) -> Listing:
    """One sample for all files of a folder whose names differ only in the suffix.

    The key is the path below `folder` without suffix, escaped. With `has_classes` the folders in it
    are classes, if there are any: a sample gets the number of its class, new or given, as `cls`.

    Raises:
        ConfigError: There are files beside the folders of classes, or a class is not among the
            given ones.
        SampleError: Two files of a sample have the same suffix, or both are images.
    """
    ignored, files_by_stem = 0, dict[str, dict[str, str]]()
    for below, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            stem, _, suffix = name.rpartition(".")
            if name.startswith(".") or not (stem and suffix):
                ignored += 1
                continue
            files = files_by_stem.setdefault(str(Path(below, stem).relative_to(folder)), {})
            _add_file(files, suffix.lower(), str(Path(below, name)))
    samples = [
        InputSample(escape_key(stem), tuple(starmap(whole_file, files.items())))
        for stem, files in files_by_stem.items()
    ]
    if not has_classes or not (given or any("/" in stem for stem in files_by_stem)):
        return Listing(samples, ignored)
    beside = next((stem for stem in files_by_stem if "/" not in stem), None)
    if beside is not None:
        raise ConfigError(
            f"{folder} has files beside its folders ({beside}), so the folders are no classes; "
            "move the files, or pack without classes"
        )
    labels = [stem.partition("/")[0] for stem in files_by_stem]
    return _with_classes(samples, labels, given)._replace(ignored=ignored)


def _raise(error: OSError) -> None:
    raise error


def _add_file(files: dict[str, str], suffix: str, path: str) -> None:
    for other, rival in files.items():
        if other == suffix or (is_image(other) and is_image(suffix)):
            raise SampleError(
                f"{rival} and {path} would be one sample with two images, or one member; rename "
                "one, as files whose names differ in the suffix alone are one sample"
            )
    files[suffix] = path


# --- tables


def list_table(path: str, columns: Columns, given: ClassNames | None = None) -> Listing:
    """One sample for each row of a table; an empty value gives no member.

    Args:
        path: The table.
        columns: The meaning of its columns.
        given: The numbers of classes, in place of new ones.

    Raises:
        ConfigError: The table cannot be read, or a row lacks a column or gives no sample.
        OSError: The table, or a file that a row names, does not exist.
    """
    samples: list[InputSample] = []
    labels: list[str] = []
    others = filter(None, (columns.key, columns.class_column, columns.split_column))
    names = dict.fromkeys([*(name for name, _ in (*columns.files, *columns.values)), *others])
    try:
        for row in read_rows(path, list(names)):
            if columns.class_column:
                labels.append(_required(row, columns.class_column))
            samples.append(_sample_of_row(row, columns, Path(path).parent))
    except (csv.Error, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}, row {len(samples) + 1}: {error}") from error
    return _with_classes(samples, labels, given) if columns.class_column else Listing(samples)


def read_rows(path: str, names: Sequence[str]) -> Iterator[Row]:
    """The rows of a table, by the suffix of its name; of Parquet the columns of these names.

    Raises:
        ConfigError: A row lacks a column, or has other cells than the first line.
        ValueError: A row cannot be read.
    """
    if Path(path).suffix.lower() == ".parquet":
        yield from _parquet_rows(path, names)
        return
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        if Path(path).suffix.lower() == ".jsonl":
            for row in map(json.loads, filter(str.strip, file)):
                _require_columns(names, list(row))
                yield row
            return
        reader = csv.DictReader(file, strict=True)
        _require_columns(names, reader.fieldnames or [])
        for row in reader:
            if None in row or None in row.values():
                raise ConfigError("it has not as many cells as the first line; correct it")
            yield row


def _parquet_rows(path: str, names: Sequence[str]) -> Iterator[Row]:
    require_library("Parquet", "pyarrow", "pyarrow", "table")
    file: Any = import_module("pyarrow.parquet").ParquetFile(path)
    _require_columns(names, file.schema_arrow.names)
    for batch in file.iter_batches(columns=list(names)):
        yield from batch.to_pylist()


def _require_columns(names: Iterable[str], present: Sequence[str]) -> None:
    for name in names:
        if present.count(name) != 1:  # a row as a dict keeps the last of two
            what = "two columns" if name in present else "no column"
            raise ConfigError(f"the table has {what} {name!r}, but {', '.join(map(str, present))}")


def _sample_of_row(row: Row, columns: Columns, folder: Path) -> InputSample:
    paths = [(path, of) for name, of in columns.files if (path := _text(row, name))]
    members = [
        whole_file(of or Path(path).suffix[1:].lower(), str(folder / path)) for path, of in paths
    ]
    for name, of in columns.values:
        if row[name] not in (None, ""):
            members.append(inline(of, as_bytes(row[name], str(row.get(columns.key or name)), of)))
    split = _required(row, columns.split_column) if columns.split_column else ""
    if columns.key:
        return InputSample(escape_key(_required(row, columns.key)), tuple(members), split)
    if not paths:
        raise SampleError("it names no file, and there is no column of keys; name one by --key")
    return InputSample(key_of_path(paths[0][0]), tuple(members), split)


def _required(row: Row, column: str) -> str:
    text = _text(row, column)
    if not text:
        raise SampleError(f"the column {column!r} is empty; fill it in")
    return text


def _text(row: Row, column: str) -> str:
    """The value as text; programs for tables put NaN where they have none."""
    value = row[column]
    return "" if value is None or value != value else str(value)  # noqa: PLR0124 NaN alone


# --- tars


def list_tars(paths: Sequence[str], cache: CacheFolder, *, processes: int = 1) -> Listing:
    """The samples of local tars in file order; members that are apart in a tar are joined.

    The classes are those of `classes.json` beside the tars. The samples of each tar are counted
    against the files beside it, because new shards are well by checksums of their own.

    Raises:
        ShardNotFoundError: A tar does not exist.
        ConfigError: Tars of two folders have different classes.
        IndexMismatchError: A tar has another number of samples than a file beside it says.
        DamagedShardError: A tar is damaged.
    """
    known = known_classes(paths)
    claims = claimed_counts({split_url(path): path for path in paths}, Storages())
    counts = {place: claim.samples for place, claim in claims.items()}
    tasks = [(path, counts.get(split_url(path))) for path in paths]
    results = map_parallel(partial(_list_tar, cache=cache), tasks, processes)
    listings = list(tqdm(results, "listed", len(tasks), unit=" tars", disable=None))
    samples = [sample for listing in listings for sample in listing.samples]
    ignored = sum(listing.ignored for listing in listings)
    return Listing(samples, ignored, {} if known is None else dict(known.numbers))


def _list_tar(task: tuple[str, int | None], *, cache: CacheFolder) -> Listing:
    path, expected = task
    whole = whole_file("", path)  # first, so that a change after it is noticed
    table = TableStore(cache, takes_split=True).table_of(path, expected_samples=expected)
    found = describe_table(path, table).findings
    ignored = sum(finding.count for finding in found if finding.rule == PASSED_OVER)
    runs: list[tuple[str, dict[str, InputExtent]]] = []
    first: dict[str, dict[str, InputExtent]] = {}
    for sample in range(table.num_samples):
        key, members = table.key(sample), dict[str, InputExtent]()
        for suffix in table.suffixes_of(sample):
            offset, size, _ = table.find(sample, suffix) or (0, 0, None)
            members[suffix] = whole._replace(field=suffix, offset=offset, size=size)
        if key.endswith("/"):  # of hidden files such as x/._0001.jpg, which macOS adds to tars
            ignored += len(members)
            continue
        known = first.setdefault(key, members)
        if known is members or known.keys() & members.keys():  # repeated keys are refused later
            runs.append((key, members))
        else:
            known |= members
    samples = [InputSample(key, tuple(members.values())) for key, members in runs]
    return Listing(samples, ignored)


# --- classes


def _with_classes(
    samples: Iterable[InputSample], labels: Sequence[str], given: ClassNames | None
) -> Listing:
    """The samples, each with the number of its class as its last member."""
    classes = number_classes(labels, given)
    numbered = [
        sample._replace(members=(*sample.members, inline(CLASS_SUFFIX, b"%d" % classes[label])))
        for sample, label in zip(samples, labels, strict=True)
    ]
    return Listing(numbered, classes=classes)


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
                f"{given.source} has no class {unknown[0]!r}; add what is missing behind its last "
                "number, and pack all splits again by it"
            )
        return dict(given.numbers)
    if all(map(_NUMBER.fullmatch, in_order)):
        in_order.sort(key=float)
    return {name: number for number, name in enumerate(in_order)}
