"""Listing of the samples in folders of files and in tars; other files are counted by reason."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from lightning_shards.dataprep.indexed_tars import counts_beside, indexed_crc32s
from lightning_shards.dataprep.input_files import UNKNOWN
from lightning_shards.dataprep.processes import run_in_processes
from lightning_shards.dataprep.writing.apart import error_of_inside, identities_of, require_outside
from lightning_shards.dataprep.writing.catalog import Catalog, CatalogBuilder, join_catalogs
from lightning_shards.dataprep.writing.class_files import classes_beside, number_classes
from lightning_shards.dataprep.writing.keys import escape_key, is_hidden
from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    SampleError,
    ShardNotFoundError,
    count_of,
)
from lightning_shards.shards.classes import CLASS_SUFFIX, ClassNames
from lightning_shards.shards.counts import CountClaim
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import (
    Member,
    OtherEntry,
    group_members,
    split_name,
    walk_members,
)

IMAGE_FIELDS: Final = frozenset(
    {"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm"}
)

_HIDDEN: Final = "hidden or __x__"
_LEFT_OUT: Final = "left out by __bad__"

SuffixFrom = Literal["last", "first"]
"""Which dot of a file's name separates key and suffix: of x.seg.png, the suffix is png or
seg.png."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of an input, and counts of everything else in it.

    Attributes:
        catalog: The samples.
        ignored: Number of files or members that are in no sample, by reason.
        classes: Numbers of the classes by name, in the order of the numbers; may be empty.
        joined: Number of runs of members that were apart from the rest of their sample in a tar.
    """

    catalog: Catalog
    ignored: Counter[str] = field(default_factory=Counter[str])
    classes: Mapping[str, int] = field(default_factory=dict[str, int])
    joined: int = 0


def list_folder(
    folder: str,
    *,
    suffix_from: SuffixFrom = "last",
    has_classes: bool = True,
    given: ClassNames | None = None,
    outputs: Sequence[Path] = (),
) -> Listing:
    """One sample for all files of a folder whose names differ only in the suffix.

    The key is the path below `folder` without suffix, escaped. With `has_classes` the folders in it
    are classes, with new numbers or the `given` ones, and a sample gets that of its class as field
    `cls`. The samples will be written to the folders `outputs`.

    Raises:
        ShardNotFoundError: There is no such folder.
        ConfigError: There are files beside the folders of classes, a class is not among the given
            ones, or an output is in the folder.
        SampleError: Two files of a sample have the same suffix, or both are images.
    """
    ignored: Counter[str] = Counter()
    files_by_stem: dict[str, dict[str, str]] = {}
    for path in _files_below(folder, outputs, ignored):
        name = os.path.relpath(path, folder)
        parts = _split_path(name, suffix_from, ignored)
        if parts:
            _add_file(files_by_stem.setdefault(parts[0], {}), parts[1], path)
    classes: dict[str, int] = {}
    if has_classes:
        classes = number_classes(_class_folders(files_by_stem, folder), given)
    builder = CatalogBuilder()
    for stem, files in files_by_stem.items():
        builder.begin(escape_key(stem))
        for suffix, path in files.items():
            builder.add_file(suffix, path)
        if classes:
            builder.add_inline(CLASS_SUFFIX, _class_number(stem, files, classes))
    return Listing(builder.build(), ignored, classes)


def list_tars(
    paths: Sequence[str],
    *,
    cache: CacheFolder,
    copies: Mapping[str, str] = MappingProxyType({}),
    processes: int = 1,
    show_progress: bool | None = None,
) -> Listing:
    """The samples of local tars in file order; members that are apart in a tar are joined.

    The classes are those of `classes.json` beside the tars. Each tar is held against the counts
    beside it and the member tables of earlier indexes, beside it or in `cache`. `copies` are the
    paths of plain copies by those of compressed tars.

    Raises:
        ShardNotFoundError: A tar does not exist.
        ConfigError: Tars of two folders have different classes.
        IndexMismatchError: A tar has another size or number of samples than a file beside it says.
        DamagedShardError: A tar is damaged, or has other members than when it was indexed.
        SampleError: A key or a field could not be written so that it reads back, or a member of a
            sample is a link.
    """
    classes = classes_beside(paths)
    folders = {os.path.dirname(path) for path in paths}  # noqa: PTH120 - a leading ./ stays
    where = folders.pop() if len(folders) == 1 else f"{len(folders)} folders"
    plain = [copies.get(path, path) for path in paths]
    counts = counts_beside(paths)
    tasks = [(copies.get(path, path), counts.get(path)) for path in dict.fromkeys(paths)]
    listing_by_path: dict[str, Listing] = {}
    with progress_line("listed", len(paths), where, show=show_progress) as step:
        list_one = partial(_list_tar, cache=cache)
        for (path, _), listing in run_in_processes(list_one, tasks, processes):
            listing_by_path[path] = listing
            step()
    listings = [listing_by_path[path] for path in plain]
    ignored = sum((listing.ignored for listing in listings), Counter[str]())
    joined = sum(listing.joined for listing in listings)
    catalog = join_catalogs([listing.catalog for listing in listings])
    return Listing(catalog, ignored, classes, joined)


def _files_below(folder: str, outputs: Sequence[Path], ignored: Counter[str]) -> Iterator[str]:
    """The visible files, sorted; links are followed."""
    if not os.path.isdir(folder):  # noqa: PTH112 - paths stay strings here
        raise ShardNotFoundError(f"{folder} is no folder; check the path and the mount")
    require_outside(folder, outputs)
    written = identities_of(outputs)
    visited: set[tuple[int, int]] = set()
    for below, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        status = os.stat(below)  # noqa: PTH116
        if (status.st_dev, status.st_ino) in visited:
            raise ConfigError(f"{below} is reached twice, by a link; remove the link")
        visited.add((status.st_dev, status.st_ino))
        if (output := written.get((status.st_dev, status.st_ino))) is not None:  # by a link
            raise error_of_inside(output, folder)
        ignored["hidden"] += sum(name.startswith(".") for name in folders + names)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(below, name) for name in sorted(names) if name[0] != ".")  # noqa: PTH118


def _raise(error: OSError) -> None:
    raise FileAccessError(
        f"{error.filename} cannot be listed: {error.strerror}; look at its rights, or move it away"
    ) from error


def _split_path(
    name: str, suffix_from: SuffixFrom, ignored: Counter[str]
) -> tuple[str, str] | None:
    """Path without suffix, and suffix in lower case; None, and counted, if there is no suffix."""
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.rpartition(".") if suffix_from == "last" else base.partition(".")
    if not (dot and stem and suffix):
        ignored["without suffix"] += 1
        return None
    return folder + slash + stem, suffix.lower()


def _add_file(files: dict[str, str], suffix: str, path: str) -> None:
    if suffix in files:
        raise SampleError(f"{files[suffix]} and {path} would be one member; rename one")
    image = next((other for other in files if other in IMAGE_FIELDS), None)
    if suffix in IMAGE_FIELDS and image:
        raise SampleError(
            f"{files[image]} and {path} would be one sample with two images; rename one, as files "
            "whose names differ in the suffix alone are one sample"
        )
    files[suffix] = path


def _class_number(stem: str, files: Mapping[str, str], classes: Mapping[str, int]) -> bytes:
    """The content of the field `cls` of a sample, by its folder."""
    if CLASS_SUFFIX in files:
        raise SampleError(
            f"{files[CLASS_SUFFIX]} and the class of its folder are both `{CLASS_SUFFIX}`"
        )
    return str(classes[stem.partition("/")[0]]).encode()


def _class_folders(stems: Iterable[str], folder: str) -> set[str]:
    """The names of the folders that are classes."""
    names: set[str] = set()
    for stem in stems:
        name, slash, _ = stem.partition("/")
        if not slash:
            raise ConfigError(
                f"{folder} has files beside its folders ({name}), so the folders are no classes; "
                "move the files, or pack without classes"
            )
        names.add(name)
    return names


def _list_tar(task: tuple[str, CountClaim | None], *, cache: CacheFolder) -> Listing:
    """The samples of one tar; `salvage` joins members that are apart by the same rule."""
    path, claim = task
    crc32s = indexed_crc32s(path, claim, cache)
    ignored: Counter[str] = Counter()
    others: list[OtherEntry] = []
    samples: dict[str, dict[str, Member]] = {}
    joined = 0
    repeated: list[tuple[str, dict[str, Member]]] = []
    ended: set[str] = set()  # keys of two samples: what follows may belong to either
    builder = CatalogBuilder()
    source = builder.add_source(path)
    with open_tar(path) as data:
        members = _counted(walk_members(data, path, others=others), ignored)
        for key, fields in group_members(members, path):
            ignored[_LEFT_OUT] -= len(fields)
            known = samples.setdefault(key, fields)
            if known is fields:
                continue
            if key in ended or known.keys() & fields.keys():
                ended.add(key)
                repeated.append((key, fields))
            else:
                known |= fields
                joined += 1
    _refuse_lost_links(others, samples, path)
    ignored.update(f"{entry.kind}s" for entry in others if entry.kind != "folder")
    try:
        for key, fields in [*samples.items(), *repeated]:
            builder.begin(key)
            for suffix, member in fields.items():
                crc32 = crc32s.get(member.offset, UNKNOWN)
                builder.add_extent(suffix, source, member.offset, member.size, crc32)
    except SampleError as error:
        raise SampleError(
            f"{path}: {error}; or unpack the tar and pack the folder, whose names may be any"
        ) from error
    return Listing(builder.build(), ignored, joined=joined)


def _refuse_lost_links(
    others: Iterable[OtherEntry], samples: Mapping[str, Mapping[str, Member]], path: str
) -> None:
    """Refuse links in the place of members, whose data is elsewhere; one to itself loses nothing.

    Raises:
        SampleError: The message has their number and the first of them.
    """
    lost: list[str] = []
    for entry in others:
        parts = None if is_hidden(entry.name) else split_name(entry.name)
        if entry.kind == "link" and parts and parts[1] not in samples.get(parts[0], ()):
            lost.append(entry.name)
    if lost:
        raise SampleError(
            f"{path}: samples lose {count_of(len(lost), 'member')} that a link stands for, which "
            f"has no data, first {lost[0]!r}; write the tar by GNU tar with --hard-dereference "
            "--dereference, or unpack it and pack the folder"
        )


def _counted(members: Iterable[Member], ignored: Counter[str]) -> Iterator[Member]:
    """The members that are in samples; others, and hidden ones as in folders, are counted."""
    for member in members:
        if is_hidden(member.name):
            ignored[_HIDDEN] += 1
        elif split_name(member.name) is None:
            base = member.name.rpartition("/")[2]
            ignored["without suffix" if "." not in base else _HIDDEN] += 1
        else:
            ignored[_LEFT_OUT] += 1  # until it comes in a sample
            yield member
