"""The samples to be written, where the bytes of their members are, and their shards.

A member is a stretch of a file: of a tar, or of a file with nothing else in it; a label or a
caption is in no file. So one plan and one writer serve every kind of input. Files must stay as they
were listed.

All randomness comes from each sample's key and the seed alone. So neither the order in which inputs
are named nor samples that are added later change the split of a sample, or the order of the other
samples.
"""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.tar_writer import tar_size
from lightning_shards.errors import ConfigError, DamagedShardError, FileAccessError, SampleError
from lightning_shards.shards.files import absent, irregular, open_regular, stamp_of
from lightning_shards.shards.storage.local import read_at


class InputFile(NamedTuple):
    """A file with its size and time of change when it was listed."""

    path: str
    size_bytes: int
    mtime_ns: int


class InputExtent(NamedTuple):
    """The bytes of one member: a stretch of a file, or `inline` if it is in no file."""

    field: str
    source: InputFile | None
    offset: int
    size: int
    inline: bytes


class InputSample(NamedTuple):
    """A sample: its key, its members in file order, and its split; "" if it has none."""

    key: str
    members: tuple[InputExtent, ...]
    split: str = ""


class InputFiles:
    """Reads the bytes of extents, and keeps the file of the last one open."""

    def __init__(self) -> None:
        self._source: InputFile | None = None
        self._file = -1

    def read(self, extent: InputExtent) -> bytes:
        """The bytes of a member.

        Raises:
            ShardNotFoundError: Its file does not exist any more.
            FileAccessError: It cannot be opened or read.
            DamagedShardError: The file was changed after it was listed.
        """
        source = extent.source
        if source is None:
            return extent.inline
        if source != self._source:
            self.close()
            self._file = open_regular(source.path)
            self._source = source
        try:
            data = read_at(self._file, extent.offset, extent.size)
        except OSError as error:
            raise FileAccessError(
                f"{source.path}: {extent.size:,} bytes at byte {extent.offset} cannot be read: "
                f"{error.strerror}; look at the disk that it is on"
            ) from error
        # It is compared after reading, because a write changes the time of a file before its bytes.
        if stamp_of(self._file) != source[1:]:
            raise DamagedShardError(
                f"{source.path} was changed since it was listed; run the command again into a new "
                "folder"
            )
        return data

    def close(self) -> None:
        """Close the file that is open."""
        if self._source is not None:
            os.close(self._file)
            self._source = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def input_file_at(path: str) -> InputFile:
    """A file with its current size and time of change.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, this user has no access to it, or the text can be
            no path.
    """
    try:
        status = Path(path).stat()
    except FileNotFoundError as error:
        raise absent(path) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL, or half of a pair of UTF-16
        raise FileAccessError(
            f"{path!r} cannot be looked at: {error}; look at the name, and at the rights"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise irregular(path, status.st_mode)
    return InputFile(os.path.abspath(path), status.st_size, status.st_mtime_ns)  # noqa: PTH100 - "..", links stay


def whole_file(field: str, path: str) -> InputExtent:
    """A member that is a whole file; errors as of `input_file_at`."""
    file = input_file_at(path)
    return InputExtent(field, file, 0, file.size_bytes, b"")


def inline(field: str, data: bytes) -> InputExtent:
    """A member with this content."""
    return InputExtent(field, None, 0, len(data), data)


PackOrder = Literal["source", "shuffled", "sorted"]
"""As listed, in a uniformly random order by the seed, or sorted by the bytes of the keys."""

FRACTION_SPLITS: Final = ("train", "val")
"""The splits that `val_fraction` makes."""

DEFAULT_MAX_BYTES: Final = 1_000_000_000
"""Bytes of a shard: large enough for few files that disks and stores read at full speed."""

_ORDER_WORD, _SPLIT_WORD, _KEEP_WORD = range(3)
_WORDS = 3
_WORD_BYTES = 8
_WORD_RANGE = 2.0**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How samples are laid out in shards.

    Attributes:
        order: The order of the samples.
        seed: 0 <= seed < 2**64.
        max_samples: Most samples of a shard.
        max_bytes: Most bytes of a shard, before any edit; a larger sample gets a shard of its own.
            Default: 1 GB if `max_samples` is not given.
        num_shards: Number of shards of all splits together, in proportion to their samples; it
            replaces the two limits. The shards of a split differ by at most one sample.
        keep: Share of the samples that is kept, each by its own draw.
        val_fraction: Share of the samples that goes to the split `val`; the others go to `train`.
    """

    order: PackOrder = "source"
    seed: int = 0
    max_samples: int | None = None
    max_bytes: int | None = None
    num_shards: int | None = None
    keep: float = 1.0
    val_fraction: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        if self.order not in get_args(PackOrder):
            raise ConfigError(f"order must be one of {get_args(PackOrder)}, got {self.order!r}")
        for name, least, stop in (
            ("seed", 0, 2**64),
            ("max_samples", 1, 2**63),
            ("max_bytes", 1, 2**63),
            ("num_shards", 1, 2**63),
            ("val_fraction", 0, 1),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value < stop:
                raise ConfigError(f"{name} must be at least {least} and below {stop}, got {value}")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must be a share above 0 and at most 1, got {self.keep}")
        if self.num_shards is not None and (self.max_samples or self.max_bytes):
            raise ConfigError("num_shards goes with neither max_samples nor max_bytes; choose")


def assign(
    samples: Sequence[InputSample], packing: Packing, is_kept: NDArray[np.bool_] | None = None
) -> dict[str, list[NDArray[np.int64]]]:
    """The numbers of the samples of each shard, in order, by split ("" if there are no splits).

    Args:
        samples: If they name splits, these are used, and `val_fraction` must be 0.
        packing: How samples are laid out.
        is_kept: bool, shape (num_samples,): the samples that pass a filter; None: all.

    Raises:
        ConfigError: A split has no sample, or fewer samples than shards.
    """
    keys = [sample.key for sample in samples]
    words = _words(keys, packing.seed)
    numbers = np.arange(len(keys))
    if packing.order == "sorted":  # UTF-8 sorts like the letters that it stands for
        numbers = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    elif packing.order == "shuffled":  # by one word; by another where two are equal
        numbers = np.lexsort((words[:, _SPLIT_WORD], words[:, _ORDER_WORD]))
    if is_kept is not None:
        numbers = numbers[is_kept[numbers]]
    if packing.keep < 1:
        numbers = numbers[words[numbers, _KEEP_WORD] < np.uint64(packing.keep * _WORD_RANGE)]
    split_of = np.array([sample.split for sample in samples])
    if packing.val_fraction:
        limit = np.uint64(packing.val_fraction * _WORD_RANGE)
        split_of = np.where(words[:, _SPLIT_WORD] < limit, "val", "train")
    sizes = np.array(
        [sum(tar_size(member.size) for member in sample.members) for sample in samples]
    )
    plan: dict[str, list[NDArray[np.int64]]] = {}
    for name in split_names(samples, packing):
        part = numbers[split_of[numbers] == name]
        plan[name] = _cut(part, sizes, packing, name, len(part) / max(len(numbers), 1))
    return plan


def split_names(samples: Sequence[InputSample], packing: Packing) -> list[str]:
    """The splits that `assign` gives; [""] if there are no splits."""
    names = sorted({sample.split for sample in samples}) or [""]
    if packing.val_fraction and names != [""]:
        raise ConfigError("val_fraction and a column of splits both split; choose one")
    return list(FRACTION_SPLITS) if packing.val_fraction else names


def require_unique_keys(samples: Sequence[InputSample]) -> None:
    """Check that no two samples have the same key.

    Raises:
        SampleError: Two have; the message names both files.
    """
    counts = Counter(sample.key for sample in samples)
    if len(counts) < len(samples):
        [(key, _)] = counts.most_common(1)
        first, second = [_file_of(sample) for sample in samples if sample.key == key][:2]
        raise SampleError(
            f"samples share their keys, such as {key!r} of {first} and {second}; rename the files, "
            "or of a table name a column of unique keys by --key"
        )


def _file_of(sample: InputSample) -> str:
    source = sample.members[0].source
    return source.path if source else "a row"


def _words(keys: Sequence[str], seed: int) -> NDArray[np.uint64]:
    """Three random words for each key, from the key and the seed alone, shape (num_keys, 3)."""
    salt = seed.to_bytes(_WORD_BYTES, "little")
    length = _WORDS * _WORD_BYTES
    drawn = (hashlib.blake2b(key.encode(), digest_size=length, key=salt).digest() for key in keys)
    return np.frombuffer(b"".join(drawn), "<u8").reshape(-1, _WORDS)


def _cut(
    numbers: NDArray[np.int64],
    sizes: NDArray[np.int64],
    packing: Packing,
    split: str,
    share: float,
) -> list[NDArray[np.int64]]:
    """The samples of each shard of one split, which has this share of all samples."""
    name = f"split {split!r}" if split else "the data set"
    if not len(numbers):
        raise ConfigError(f"{name} has no sample; look at the input and at what was left out of it")
    if packing.num_shards is not None:
        num_shards = max(1, round(packing.num_shards * share))
        if num_shards > len(numbers):
            raise ConfigError(f"{name} has {len(numbers)} samples, too few for {num_shards} shards")
        return np.array_split(numbers, num_shards)
    max_samples = packing.max_samples or len(numbers)
    max_bytes = packing.max_bytes or (DEFAULT_MAX_BYTES if packing.max_samples is None else 0)
    ends = np.cumsum(sizes[numbers])
    cuts = [0]
    while cuts[-1] < len(numbers):
        start = cuts[-1]
        stop = min(start + max_samples, len(numbers))
        if max_bytes:
            limit = max_bytes + (int(ends[start - 1]) if start else 0)
            stop = min(stop, int(np.searchsorted(ends, limit, side="right")))
        cuts.append(max(stop, start + 1))
    return [numbers[start:stop] for start, stop in pairwise(cuts)]
